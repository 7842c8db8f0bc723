//! Defines the operations of tonic, whose health service has a unary call and a streaming call.

use tokio::sync::Mutex;
use tonic::Streaming;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Channel, Endpoint};
use tonic_health::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse};
use tonic_health::server::HealthReporter;

use super::{Operation, Result, operation};

async fn serve() -> Result<(HealthReporter, HealthClient<Channel>)> {
    let (reporter, service) = tonic_health::server::health_reporter();
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    let url = format!("http://{}", incoming.local_addr()?);
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    let client = HealthClient::new(Endpoint::from_shared(url)?.connect().await?);
    Ok((reporter, client))
}

fn request() -> HealthCheckRequest {
    HealthCheckRequest {
        service: "a".into(),
    }
}

pub(super) async fn unary() -> Result<Operation> {
    let (reporter, client) = serve().await?;
    reporter
        .set_service_status("a", ServingStatus::Serving)
        .await;
    Ok(operation((client, reporter), |shared| async move {
        let answer = shared.0.clone().check(request()).await?.into_inner();
        (answer.status == ServingStatus::Serving as i32)
            .then_some(())
            .ok_or("unexpected status".into())
    }))
}

struct Watch {
    reporter: HealthReporter,
    stream: Streaming<HealthCheckResponse>,
    is_serving: bool,
}

/// Creates an operation that receives one message of an open stream.
pub(super) async fn streaming() -> Result<Operation> {
    let (reporter, mut client) = serve().await?;
    reporter
        .set_service_status("a", ServingStatus::NotServing)
        .await;
    let mut stream = client.watch(request()).await?.into_inner();
    stream.message().await?.ok_or("no first message")?;
    let watch = Watch {
        reporter,
        stream,
        is_serving: false,
    };
    Ok(operation(Mutex::new(watch), |watch| async move {
        let mut watch = watch.lock().await;
        watch.is_serving = !watch.is_serving;
        let status = if watch.is_serving {
            ServingStatus::Serving
        } else {
            ServingStatus::NotServing
        };
        watch.reporter.set_service_status("a", status).await;
        let message = watch
            .stream
            .message()
            .await?
            .ok_or("the stream was closed")?;
        (message.status == status as i32)
            .then_some(())
            .ok_or("unexpected status".into())
    }))
}
