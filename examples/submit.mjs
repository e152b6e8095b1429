// Submit a job as our own client does: `node examples/submit.mjs ID [PROMPT]`. The same once more changes nothing.
// Needs `npm ci --prefix examples`. docs/protocol.md says what it sends, and what the answers mean.
import { createHash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import { createClient } from 'redis'

const [id, prompt = 'Once upon a time'] = process.argv.slice(2)
const queue = 'herd.tales'
const [maxJobs, maxTokens] = [process.env.HERD_MAX_QUEUE ?? '0', process.env.HERD_MAX_QUEUE_TOKENS ?? '0']
const job = { prompt, sampling: { max_tokens: 80, temperature: 0 } }
const tokens = Math.ceil(Buffer.byteLength(prompt) / 4) + job.sampling.max_tokens

const message = {
  properties: {
    delivery_tag: '@tag@', // the script puts a fresh one here
    delivery_mode: 2,
    delivery_info: { exchange: '', routing_key: queue },
    priority: 0,
    body_encoding: 'base64',
    correlation_id: id,
  },
  headers: { lang: 'js', task: 'herd.generate', id },
  'content-type': 'application/json',
  'content-encoding': 'utf-8',
  body: Buffer.from('[[], {}, {}]').toString('base64'),
}

// The head of the script names its keys and arguments. Lines that give them these names stand before it.
const file = (name) => readFileSync(new URL(`../src/llama_herd/tasks/ledger/lua/${name}.lua`, import.meta.url), 'utf8')
const own = file('submit')
const names = (what) => own.match(new RegExp(`-- ${what}:(.*(?:\\n--  .*)*)`))[1].replace(/\([^()]*\)|\n--/g, '').split(',').map((name) => name.trim())
const [keys, args] = [names('keys'), names('args')]
const value = (name, n) => (name.endsWith('#') ? `tonumber(ARGV[${n + 1}])` : `ARGV[${n + 1}]`)
const named = `local key = {${keys.map((name, n) => `${name} = KEYS[${n + 1}]`).join(', ')}}
local ${args.join(', ').replaceAll('#', '')} = ${args.map(value).join(', ')}`
const parts = ['clock', 'queue', 'push', 'waiting', 'record', 'kept', 'accept']
const script = [...parts.map(file), named, own].join('\n')
const call = {
  keys: [
    `herd:default:{${id}}:job`,
    ...['pending', 'pending:deadlines', 'delayed', 'waiting', 'served', 'kept'].map((name) => `herd:default:${name}`),
    queue,
    ...['urgent', ...'123456789', 'low'].map((lane) => `${queue}\x06\x16${lane}`),
    `herd:default:pending:${queue}`,
  ],
  arguments: [id, maxJobs, maxTokens, JSON.stringify(job), JSON.stringify(message), '', '', String(tokens)],
}

const redis = await createClient({ url: process.env.HERD_REDIS_URL ?? 'redis://127.0.0.1:6379/0' }).connect()
const [answer, numJobs, numTokens] = await redis.evalSha(createHash('sha1').update(script).digest('hex'), call)
console.log(answer, numJobs, numTokens)
await redis.close()
