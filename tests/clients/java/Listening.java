import java.util.List;
import java.util.Map;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;
import org.springframework.kafka.annotation.BackOff;
import org.springframework.kafka.annotation.DltHandler;
import org.springframework.kafka.annotation.EnableKafka;
import org.springframework.kafka.annotation.EnableKafkaRetryTopic;
import org.springframework.kafka.annotation.KafkaListener;
import org.springframework.kafka.annotation.RetryableTopic;
import org.springframework.kafka.config.ConcurrentKafkaListenerContainerFactory;
import org.springframework.kafka.core.DefaultKafkaConsumerFactory;
import org.springframework.kafka.core.DefaultKafkaProducerFactory;
import org.springframework.kafka.core.KafkaAdmin;
import org.springframework.kafka.core.KafkaTemplate;
import org.springframework.kafka.listener.ContainerProperties.AckMode;
import org.springframework.kafka.support.Acknowledgment;
import org.springframework.scheduling.concurrent.ThreadPoolTaskScheduler;

/** Spring Kafka's listeners: record, batch, manual acknowledgement, retry topics with a DLT. */
public final class Listening {
    private static final Map<String, Class<?>> LISTENERS = Map.of(
        "record", ByRecord.class, "batch", ByBatch.class, "manual", Manual.class, "retry", Retrying.class);

    public static void main(String[] words) throws Exception {
        Words.read(words);
        System.setProperty("topic", Words.get("topic"));
        System.setProperty("group", Words.get("group"));
        try (var context = new AnnotationConfigApplicationContext()) {
            context.register(Setup.class, LISTENERS.get(Words.get("mode")));
            context.refresh();
            Words.awaitEnd();
        }
    }

    @Configuration
    @EnableKafka
    static class Setup {
        @Bean
        ConcurrentKafkaListenerContainerFactory<?, ?> kafkaListenerContainerFactory() {
            String mode = Words.get("mode");
            var factory = new ConcurrentKafkaListenerContainerFactory<String, String>();
            factory.setConsumerFactory(new DefaultKafkaConsumerFactory<>(
                Words.configs(), new StringDeserializer(), new StringDeserializer()));
            factory.setBatchListener(mode.equals("batch"));
            AckMode ack = mode.equals("record") ? AckMode.RECORD
                : mode.equals("manual") ? AckMode.MANUAL_IMMEDIATE : AckMode.BATCH;
            factory.getContainerProperties().setAckMode(ack);
            return factory;
        }
    }

    static class ByRecord {
        @KafkaListener(topics = "${topic}", groupId = "${group}")
        void listen(ConsumerRecord<String, String> message) {
            Words.handle(message.partition(), message.offset());
        }
    }

    static class ByBatch {
        @KafkaListener(topics = "${topic}", groupId = "${group}")
        void listen(List<ConsumerRecord<String, String>> messages) {
            messages.forEach(message -> Words.handle(message.partition(), message.offset()));
        }
    }

    static class Manual {
        @KafkaListener(topics = "${topic}", groupId = "${group}")
        void listen(ConsumerRecord<String, String> message, Acknowledgment acknowledgment) {
            Words.handle(message.partition(), message.offset());
            acknowledgment.acknowledge();
        }
    }

    /** Poison goes to TOPIC-retry, and a second later from there to TOPIC-dlt. */
    @Configuration
    @EnableKafkaRetryTopic
    static class Retrying {
        @RetryableTopic(attempts = "2", backOff = @BackOff(delay = 1000))
        @KafkaListener(topics = "${topic}", groupId = "${group}")
        void listen(ConsumerRecord<String, String> message) {
            note(message);
            Words.refusePoison(message.value());
        }

        @DltHandler
        void takeDead(ConsumerRecord<String, String> message) {
            note(message);
        }

        private static void note(ConsumerRecord<String, String> message) {
            String topic = message.topic();
            String[] other = topic.equals(Words.get("topic")) ? new String[0] : new String[] {topic};
            Words.handle(message.partition(), message.offset(), other);
        }

        @Bean
        KafkaTemplate<String, String> kafkaTemplate() {
            return new KafkaTemplate<>(new DefaultKafkaProducerFactory<>(
                Words.configs(), new StringSerializer(), new StringSerializer()));
        }

        @Bean
        KafkaAdmin kafkaAdmin() {
            return new KafkaAdmin(Map.of("bootstrap.servers", Words.get("bootstrap")));
        }

        @Bean
        ThreadPoolTaskScheduler taskScheduler() {
            return new ThreadPoolTaskScheduler();
        }
    }
}
