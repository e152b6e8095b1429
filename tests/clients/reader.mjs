// The same as reader.py by OpenAI's client for Node: node tests/clients/reader.mjs URL KEY < cases.json

import {text} from 'node:stream/consumers'
import {createRequire} from 'node:module'

// The package lies beside the examples, from whose folder this is started.
const OpenAI = createRequire(`${process.cwd()}/`)('openai')
const [url, apiKey] = process.argv.slice(2)
const client = new OpenAI({baseURL: url, apiKey, maxRetries: 0})

async function read({chat, body, extra, only_stream: onlyStream, texts, responses}) {
  if (texts) {
    const told = await client.embeddings.create(texts)
    return {whole: told, chunks: [told]}
  }
  if (responses) {
    const whole = await client.responses.create({...responses, ...extra})
    const chunks = []
    const stream = await client.responses.create({...responses, ...extra, stream: true})
    for await (const event of stream) chunks.push(event)
    return {whole, chunks}
  }
  const completions = chat ? client.chat.completions : client.completions
  const asked = {...body, ...extra}
  const whole = onlyStream ? null : await completions.create(asked)
  const chunks = []
  const options = {stream: true, stream_options: {include_usage: true}}
  for await (const chunk of await completions.create({...asked, ...options})) chunks.push(chunk)
  return {whole, chunks}
}

const cases = JSON.parse(await text(process.stdin))
const answers = []
for (const one of cases) answers.push(await read(one))
const streams = answers.map(({chunks}) => chunks)
console.log(JSON.stringify({version: 'node', answers, streams}))
