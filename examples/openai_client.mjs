// OpenAI's own client for Node at the gateway: `node examples/openai_client.mjs [PROMPT]`.
// Needs `npm ci --prefix examples`, `herd gateway`, and its key: OPENAI_API_KEY=$(herd keys create NAME).
// docs/gateway.md says what of OpenAI's API there is.
import OpenAI from 'openai'

const [prompt = 'Once upon a time'] = process.argv.slice(2)
const client = new OpenAI({
  baseURL: process.env.OPENAI_BASE_URL ?? 'http://127.0.0.1:8000/v1',
  apiKey: process.env.OPENAI_API_KEY,
})

const stream = await client.completions.create({ model: 'tales', prompt, max_tokens: 80, seed: 7, stream: true })
for await (const chunk of stream) process.stdout.write(chunk.choices[0].text)
console.log()
