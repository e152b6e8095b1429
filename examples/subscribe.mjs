// Follow a job: `node examples/subscribe.mjs JOB_ID [LAST_SEQ]`, before it exists, while it runs or after its end.
// Needs `npm ci --prefix examples`. docs/protocol.md says why it is done in this order.
import { createClient } from 'redis'

const [id, after = '0'] = process.argv.slice(2)
const redis = createClient({ url: process.env.HERD_REDIS_URL ?? 'redis://127.0.0.1:6379/0' })
const channel = redis.duplicate()
for (const connection of [redis, channel]) connection.on('error', (error) => console.error(error.message))

let last = Number(after)

function take(json) {
  const event = JSON.parse(json)
  if (event.seq <= last) return // seen
  if (event.seq > last + 1) return catchUp() // a channel may lose some, the stream loses none
  last = event.seq
  console.log(event.seq, event.type, event.text ?? event.finish_reason ?? '')
  if (event.final) process.exit()
}

async function catchUp() {
  for (const entry of await redis.xRange(`herd:default:{${id}}:events`, `(${last}-0`, '+')) take(entry.message.e)
}

await Promise.all([redis.connect(), channel.connect()])
await channel.subscribe(`herd:default:tokens:${id}`, take)
await catchUp()
setInterval(catchUp, 2000)
