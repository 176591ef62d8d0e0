import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Producers; a line is `partition offset outcome`, written when the broker has acknowledged it.
 *
 * <p>The outcome is `sent`, or that of the transaction: `committed`, `aborted`, `open`. Of acks=0
 * the offset is -1. An open transaction stays so until the program is to end; killed, it hangs.
 */
public final class Producing {
    private static KafkaProducer<String, String> producer;
    private static final List<Future<RecordMetadata>> SENT = new ArrayList<>();

    public static void main(String[] words) throws Exception {
        Words.read(words);
        String mode = Words.get("mode");
        Map<String, Object> settings = Words.configs();
        boolean transactional = List.of("commit", "abort", "open").contains(mode);
        if (transactional) {
            settings.putIfAbsent("transactional.id", "of-" + Words.get("topic"));
        } else {
            settings.put("enable.idempotence", mode.equals("idempotent") || mode.equals("micros"));
            settings.put("acks", mode.equals("acks0") ? "0" : "all");
        }
        producer = new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer());
        long each = Words.number("each");
        if (transactional) {
            producer.initTransactions();
            producer.beginTransaction();
        }
        Words.hearEnd();
        int partitions = producer.partitionsFor(Words.get("topic")).size();
        for (long number = 0; number < Words.number("count") && !Words.ending; number++) {
            send(number, (int) (number % partitions), mode.equals("micros"));
            Words.pause();
            boolean isFull = (number + 1) % each == 0;
            if (isFull && (mode.equals("commit") || mode.equals("abort"))) {
                end(mode);
                producer.beginTransaction();
            } else if (isFull && !transactional) {
                note("sent");
            }
        }
        if (mode.equals("open")) {
            note("open");
            Words.awaitEnd();
            producer.abortTransaction();
        } else if (transactional) {
            end(mode);
        } else {
            note("sent");
        }
        producer.close();
    }

    private static void send(long number, int partition, boolean inMicroseconds) {
        Long time = inMicroseconds ? System.currentTimeMillis() * 1000 : null;
        String key = "key-" + number % 10;
        SENT.add(producer.send(
            new ProducerRecord<>(Words.get("topic"), partition, time, key, String.valueOf(number))));
    }

    private static void end(String mode) throws Exception {
        if (mode.equals("commit")) {
            producer.commitTransaction();
            note("committed");
        } else {
            producer.flush();
            producer.abortTransaction();
            note("aborted");
        }
    }

    private static void note(String outcome) throws Exception {
        producer.flush();
        for (Future<RecordMetadata> sent : SENT) {
            Words.note(sent.get().partition(), sent.get().offset(), outcome);
        }
        SENT.clear();
    }
}
