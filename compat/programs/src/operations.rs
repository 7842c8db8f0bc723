//! Defines the operations. One run of an operation is one round trip to a server.

mod grpc;
mod queue;
mod telemetry;

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::ws::WebSocketUpgrade;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::routing::get;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::Mutex;
use tower::{Service, ServiceBuilder, ServiceExt};

pub type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;
pub type Operation =
    Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<()>> + Send>> + Send + Sync>;

/// Creates an operation from an async closure over shared state.
fn operation<T, F>(shared: T, run: impl Fn(Arc<T>) -> F + Send + Sync + 'static) -> Operation
where
    T: Send + Sync + 'static,
    F: Future<Output = Result<()>> + Send + 'static,
{
    let shared = Arc::new(shared);
    Box::new(move || Box::pin(run(shared.clone())))
}

/// Creates the operation with this name.
pub async fn make(name: &str) -> Result<Operation> {
    match name {
        "reqwest-http1" => request(false).await,
        "reqwest-http2" => request(true).await,
        "axum-sse" => events().await,
        "axum-ws-tungstenite" => web_socket().await,
        "tower" => tower().await,
        "tokio-postgres" => postgres().await,
        "redis" => redis().await,
        "sqlx" => sqlx().await,
        "tonic-unary" => grpc::unary().await,
        "tonic-streaming" => grpc::streaming().await,
        "lapin" => queue::queue().await,
        "opentelemetry" => telemetry::spans().await,
        _ => Err("unknown operation".into()),
    }
}

/// Starts a server with `axum::serve`, which spawns a task per connection.
async fn serve() -> Result<SocketAddr> {
    let events = || async {
        let first =
            futures_util::stream::once(async { Ok::<_, Infallible>(Event::default().data("1")) });
        let alive = KeepAlive::new().interval(Duration::from_secs(1));
        Sse::new(first.chain(futures_util::stream::pending())).keep_alive(alive)
    };
    let echo = |upgrade: WebSocketUpgrade| async {
        upgrade.on_upgrade(|mut socket| async move {
            while let Some(Ok(message)) = socket.recv().await {
                if socket.send(message).await.is_err() {
                    return;
                }
            }
        })
    };
    let app = Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/events", get(events))
        .route("/echo", get(echo));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, app).await });
    Ok(address)
}

async fn request(http2: bool) -> Result<Operation> {
    let url = format!("http://{}/", serve().await?);
    let client = reqwest::Client::builder().no_proxy();
    let client = if http2 {
        client.http2_prior_knowledge()
    } else {
        client
    };
    Ok(operation((client.build()?, url), |shared| async move {
        let answer = shared.0.get(&shared.1).send().await?.error_for_status()?;
        let mut body = answer.bytes_stream();
        let mut text = Vec::new();
        while let Some(piece) = body.next().await {
            text.extend_from_slice(&piece?);
        }
        (text == b"hello")
            .then_some(())
            .ok_or("unexpected response".into())
    }))
}

async fn events() -> Result<Operation> {
    let url = format!("http://{}/events", serve().await?);
    let client = reqwest::Client::builder().no_proxy().build()?;
    Ok(operation((client, url), |shared| async move {
        let mut body = shared.0.get(&shared.1).send().await?.bytes_stream();
        let first = body.next().await.ok_or("no event")??;
        (&first[..] == b"data: 1\n\n")
            .then_some(())
            .ok_or("unexpected event".into())
    }))
}

async fn web_socket() -> Result<Operation> {
    let url = format!("ws://{}/echo", serve().await?);
    let (socket, _) = tokio_tungstenite::connect_async(url).await?;
    Ok(operation(Mutex::new(socket), |socket| async move {
        let mut socket = socket.lock().await;
        socket.send("hello".into()).await?;
        let answer = socket.next().await.ok_or("the web socket was closed")??;
        (answer.to_text()? == "hello")
            .then_some(())
            .ok_or("unexpected response".into())
    }))
}

/// Creates an operation through a buffer, which is a task of tokio, and through a rate limit and a
/// timeout, which use tokio's timers.
async fn tower() -> Result<Operation> {
    let service = ServiceBuilder::new()
        .buffer(8)
        .timeout(Duration::from_secs(5))
        .rate_limit(1_000_000, Duration::from_secs(1))
        .service(tower::service_fn(|n: u32| async move {
            tokio::task::yield_now().await;
            Ok::<_, Infallible>(n + 1)
        }));
    Ok(operation(Mutex::new(service), |service| async move {
        let mut service = service.lock().await;
        let answer = service.ready().await?.call(1).await?;
        (answer == 2)
            .then_some(())
            .ok_or("unexpected response".into())
    }))
}

async fn postgres() -> Result<Operation> {
    let server = std::env::var("COMPAT_POSTGRES")?;
    let (client, connection) = tokio_postgres::connect(&server, tokio_postgres::NoTls).await?;
    tokio::spawn(connection);
    let statement = client.prepare("SELECT $1::int4 + 1").await?;
    Ok(operation((client, statement), |shared| async move {
        let row = shared.0.query_one(&shared.1, &[&1_i32]).await?;
        (row.get::<_, i32>(0) == 2)
            .then_some(())
            .ok_or("unexpected sum".into())
    }))
}

async fn redis() -> Result<Operation> {
    let client = redis::Client::open(std::env::var("COMPAT_REDIS")?)?;
    let connection = client.get_multiplexed_async_connection().await?;
    Ok(operation(connection, |connection| async move {
        let mut connection = (*connection).clone();
        let count: i64 = redis::cmd("INCR")
            .arg("n")
            .query_async(&mut connection)
            .await?;
        (count > 0).then_some(()).ok_or("unexpected count".into())
    }))
}

/// Creates an operation on a pool of connections, which have no tasks of their own.
async fn sqlx() -> Result<Operation> {
    let pool = sqlx::PgPool::connect(&std::env::var("COMPAT_POSTGRES_URL")?).await?;
    Ok(operation(pool, |pool| async move {
        let sum: i32 = sqlx::query_scalar("SELECT $1::int4 + 1")
            .bind(1_i32)
            .fetch_one(&*pool)
            .await?;
        (sum == 2).then_some(()).ok_or("unexpected sum".into())
    }))
}
