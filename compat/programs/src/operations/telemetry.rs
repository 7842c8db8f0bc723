//! Defines an operation of opentelemetry, whose OTLP exporter sends a span over tonic to a
//! collector in this program.

use std::time::Duration;

use opentelemetry::trace::{Span, Tracer, TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_sdk::trace::{BatchConfigBuilder, BatchSpanProcessor, SdkTracerProvider};
use tokio::sync::{Mutex, mpsc};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Request, Response, Status};

use super::{Operation, Result, operation};

/// A collector that sends the names of spans to a channel.
struct Collector(mpsc::UnboundedSender<String>);

#[tonic::async_trait]
impl TraceService for Collector {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> std::result::Result<Response<ExportTraceServiceResponse>, Status> {
        let resources = request.into_inner().resource_spans;
        let scopes = resources
            .into_iter()
            .flat_map(|resource| resource.scope_spans);
        for span in scopes.flat_map(|scope| scope.spans) {
            let _ = self.0.send(span.name);
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

/// Creates an operation that exports a span, which is a whole batch. The processor exports on its
/// own thread, and the exporter's connection is a task of tokio.
pub(super) async fn spans() -> Result<Operation> {
    let (sender, receiver) = mpsc::unbounded_channel();
    let incoming = TcpIncoming::bind(([127, 0, 0, 1], 0).into())?.with_nodelay(Some(true));
    let url = format!("http://{}", incoming.local_addr()?);
    let service = TraceServiceServer::new(Collector(sender));
    tokio::spawn(
        Server::builder()
            .add_service(service)
            .serve_with_incoming(incoming),
    );
    let exporter = SpanExporter::builder()
        .with_tonic()
        .with_endpoint(url)
        .with_timeout(Duration::from_secs(5))
        .build()?;
    let config = BatchConfigBuilder::default()
        .with_max_export_batch_size(1)
        .build();
    let processor = BatchSpanProcessor::builder(exporter)
        .with_batch_config(config)
        .build();
    let provider = SdkTracerProvider::builder()
        .with_span_processor(processor)
        .build();
    let tracer = provider.tracer("compat");
    Ok(operation(
        (tracer, provider, Mutex::new((receiver, 0))),
        |shared| async move {
            let mut received = shared.2.lock().await;
            received.1 += 1;
            let name = received.1.to_string();
            shared.0.start(name.clone()).end();
            let span_name = received.0.recv().await.ok_or("no collector")?;
            (span_name == name)
                .then_some(())
                .ok_or("unexpected span".into())
        },
    ))
}
