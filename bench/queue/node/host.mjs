// The twin of bench/queue/host.py for peers on Node: node host.mjs ADAPTER OPTIONS ROLE DSN [ARGS]
import fs from 'node:fs'
import path from 'node:path'

const now = () => Number(process.hrtime.bigint()) / 1e9
const sleep = (seconds) => new Promise((resolve) => setTimeout(resolve, Math.max(0, seconds) * 1000))
const payloads = (count) => Array.from({ length: count }, (_, number) => ({ number, sent_at: 0 }))
const WARM_S = 0.5

// The file of bench/queue/meter.py: how many jobs have started, when the first did, how long each numbered one waited.
function meter (folder, waits) {
  const file = fs.openSync(path.join(folder, `meter.${process.pid}`), 'w+')
  fs.writeSync(file, Buffer.alloc(16 + 8 * waits))
  const head = Buffer.alloc(16)
  const wait = Buffer.alloc(8)
  let count = 0n
  return (payload) => {
    const time = now()
    if (count === 0n) head.writeDoubleLE(time, 8)
    head.writeBigInt64LE(++count, 0)
    fs.writeSync(file, head, 0, 16, 0)
    if (payload.sent_at && payload.number >= 0 && payload.number < waits) {
      wait.writeDoubleLE(time - payload.sent_at, 0)
      fs.writeSync(file, wait, 0, 8, 16 + 8 * payload.number)
    }
  }
}

const roles = {
  setup: (adapter, _options, dsn) => adapter.setup(dsn),

  async one (adapter, _options, dsn, count, warmup) {
    const client = await adapter.open(dsn)
    for (const payload of payloads(Number(warmup))) await adapter.enqueueOne(client, payload)
    const start = now()
    for (const payload of payloads(Number(count))) await adapter.enqueueOne(client, payload)
    const seconds = now() - start
    await adapter.close(client)
    return { seconds }
  },

  async bulk (adapter, _options, dsn, _way, count, warmup) {
    const client = await adapter.open(dsn)
    if (Number(warmup)) await adapter.enqueueMany(client, payloads(Number(warmup)))
    const start = now()
    await adapter.enqueueMany(client, payloads(Number(count)))
    const seconds = now() - start
    await adapter.close(client)
    return { seconds }
  },

  async wake (adapter, _options, dsn, count, every, warmup) {
    const client = await adapter.open(dsn)
    for (let number = -Number(warmup); number < 0; number++) {
      await adapter.enqueueOne(client, { number, sent_at: now() })
      await sleep(Number(every))
    }
    let due = now() + WARM_S
    for (let number = 0; number < Number(count); number++) {
      await sleep(due - now())
      await adapter.enqueueOne(client, { number, sent_at: now() })
      due += Number(every)
    }
    await adapter.close(client)
  },

  async worker (adapter, options, dsn, folder, waits) {
    const handled = meter(folder, Number(waits))
    fs.writeFileSync(path.join(folder, `ready.${process.pid}`), '')
    while (!fs.existsSync(path.join(folder, 'gate'))) await sleep(0.001)
    await adapter.worker(dsn, handled, options)
  }
}

const [name, options, role, ...args] = process.argv.slice(2)
const adapter = await import(`./${name}.mjs`)
const found = await roles[role](adapter, JSON.parse(options), ...args)
if (found !== undefined) console.log(JSON.stringify(found))
if (role !== 'worker') process.exit(0)
