// Enqueue with celery-node and wait for the result. Needs `npm ci --prefix examples`.
import celery from 'celery-node'

const url = process.env.HERD_REDIS_URL ?? 'redis://127.0.0.1:6379/0'
const client = celery.createClient(url, url, 'herd.tales')
const job = { prompt: 'Once upon a time', sampling: { max_tokens: 80, temperature: 0 } }
const sent = client.createTask('herd.generate').applyAsync([], job)
console.log(sent.taskId)
console.log((await sent.get(60_000)).text)
await client.disconnect()
