//! Defines an operation of lapin, which sends a message to RabbitMQ and receives it again.

use futures_util::StreamExt;
use lapin::options::{BasicConsumeOptions, BasicPublishOptions, QueueDeclareOptions};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, Consumer};
use tokio::sync::Mutex;

use super::{Operation, Result, operation};

struct Queue {
    _connection: Connection,
    channel: Channel,
    consumer: Consumer,
    name: String,
    count: u64,
}

pub(super) async fn queue() -> Result<Operation> {
    let server = std::env::var("COMPAT_RABBITMQ")?;
    let connection = Connection::connect(&server, ConnectionProperties::default()).await?;
    let channel = connection.create_channel().await?;
    let options = QueueDeclareOptions {
        exclusive: true,
        ..QueueDeclareOptions::default()
    };
    let queue = channel
        .queue_declare("".into(), options, FieldTable::default())
        .await?;
    let name = queue.name().to_string();
    let options = BasicConsumeOptions {
        no_ack: true,
        ..BasicConsumeOptions::default()
    };
    let consumer = channel
        .basic_consume(
            name.as_str().into(),
            "".into(),
            options,
            FieldTable::default(),
        )
        .await?;
    let queue = Queue {
        _connection: connection,
        channel,
        consumer,
        name,
        count: 0,
    };
    Ok(operation(Mutex::new(queue), |queue| async move {
        let mut queue = queue.lock().await;
        queue.count += 1;
        let body = queue.count.to_be_bytes();
        let options = BasicPublishOptions::default();
        queue
            .channel
            .basic_publish(
                "".into(),
                queue.name.as_str().into(),
                options,
                &body,
                BasicProperties::default(),
            )
            .await?
            .await?;
        let delivery = queue
            .consumer
            .next()
            .await
            .ok_or("the queue was closed")??;
        (delivery.data == body)
            .then_some(())
            .ok_or("unexpected message".into())
    }))
}
