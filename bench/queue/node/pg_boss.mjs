// pg-boss, by its public interface.
import { PgBoss } from 'pg-boss'

async function start (options) {
  const boss = new PgBoss(options)
  boss.on('error', console.error)
  await boss.start()
  return boss
}

export const open = (dsn) => start({ connectionString: dsn, supervise: false, schedule: false })
export const close = (boss) => boss.stop({ graceful: false })
export const enqueueOne = (boss, payload) => boss.send('noop', payload)
export const enqueueMany = (boss, payloads) => boss.insert('noop', payloads.map((data) => ({ data })))

export async function setup (dsn) {
  const boss = await open(dsn)
  await boss.createQueue('noop', { notify: true })
  await close(boss)
}

export async function worker (dsn, handled) {
  const boss = await start({ connectionString: dsn, useListenNotify: true })
  const options = { batchSize: 1000, localConcurrency: 2, burstWhenBatchFull: true, pollingIntervalSeconds: 0.5 }
  await boss.work('noop', options, async (jobs) => {
    for (const job of jobs) handled(job.data)
  })
  await new Promise(() => {})
}
