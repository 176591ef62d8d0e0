// KafkaJS: handles messages one by one, and commits by itself.
const fs = require('fs')
const { Kafka, logLevel } = require('kafkajs')

const words = Object.fromEntries(process.argv.slice(2).map((word) => {
  const at = word.indexOf('=')
  return [word.slice(0, at), word.slice(at + 1)]
}))
const record = fs.openSync(words.record, 'a')
let ending = false
let cut = () => {}

const pause = (ms) => new Promise((resolve) => {
  const timer = setTimeout(resolve, ms)
  cut = () => { clearTimeout(timer); resolve() }
})

async function main () {
  const kafka = new Kafka({ brokers: words.bootstrap.split(','), logLevel: logLevel.ERROR })
  const consumer = kafka.consumer({ groupId: words.group, maxWaitTimeInMs: 500 })
  process.on('SIGTERM', async () => {
    ending = true
    cut()
    await consumer.disconnect()
    process.exit(0)
  })
  await consumer.connect()
  await consumer.subscribe({ topics: [words.topic], fromBeginning: true })
  await consumer.run({
    autoCommitInterval: Number(words.commit_ms),
    eachMessage: async ({ partition, message }) => {
      fs.writeSync(record, `${partition} ${message.offset}\n`)
      if (!ending && words.delay_ms !== '0') await pause(Number(words.delay_ms))
    }
  })
}

main().catch((error) => { console.error(error); process.exit(1) })
