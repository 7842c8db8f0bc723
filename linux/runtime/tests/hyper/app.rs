//! The axum application under test, and a server that runs it on a thread.

use std::convert::Infallible;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::Response;
use axum::response::sse::{Event, Sse};
use axum::routing::{get, post};
use axum::{Json, Router};
use futures_util::stream::{self, Stream};
use serde::{Deserialize, Serialize};
use upshift::hyper::Server;
use upshift::net::TcpListener;
use upshift::sync::Notify;

#[derive(Serialize, Deserialize)]
pub(crate) struct Sum {
    pub(crate) a: i64,
    pub(crate) b: i64,
}

#[derive(Deserialize)]
struct Size {
    bytes: usize,
}

async fn add(Json(sum): Json<Sum>) -> Json<i64> {
    Json(sum.a + sum.b)
}

async fn level() -> String {
    upshift::current_level().unwrap().to_string()
}

async fn echo(body: Body) -> Body {
    body
}

async fn length(body: Bytes) -> String {
    body.len().to_string()
}

async fn zeros(Query(size): Query<Size>) -> Body {
    const PIECE: usize = 10_000;
    let pieces = stream::unfold(size.bytes, |left| async move {
        let len = left.min(PIECE);
        (len > 0).then(|| (Ok::<_, Infallible>(Bytes::from(vec![0; len])), left - len))
    });
    Body::from_stream(pieces)
}

async fn ticks() -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    Sse::new(stream::unfold(0u32, |n| async move {
        upshift::time::sleep(Duration::from_millis(1)).await;
        (n < 3).then(|| (Ok(Event::default().data(n.to_string())), n + 1))
    }))
}

/// Number of requests for `/slow` that have begun, in all servers of this process.
pub(crate) static SLOW_REQUESTS: AtomicU64 = AtomicU64::new(0);

async fn slow() -> &'static str {
    SLOW_REQUESTS.fetch_add(1, Ordering::Relaxed);
    upshift::time::sleep(Duration::from_millis(300)).await;
    "slow"
}

/// Blocks its vCPU while requests to the other handlers arrive.
async fn block() -> &'static str {
    std::thread::sleep(Duration::from_millis(20));
    "blocked"
}

/// A lock that blocking functions share, like a database.
static DATABASE: std::sync::Mutex<()> = std::sync::Mutex::new(());

async fn blocking() -> &'static str {
    let function = || {
        let _held = DATABASE.lock().unwrap();
        let began = std::time::Instant::now();
        while began.elapsed() < Duration::from_micros(50) {
            std::hint::spin_loop();
        }
    };
    upshift::spawn_blocking(function).await.unwrap();
    "written"
}

async fn count(State(requests): State<Arc<AtomicU64>>, request: Request, next: Next) -> Response {
    let number = requests.fetch_add(1, Ordering::Relaxed);
    let mut response = next.run(request).await;
    response.headers_mut().insert("x-request", number.into());
    response
}

pub(crate) fn app() -> Router {
    let requests = Arc::new(AtomicU64::new(0));
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/add", post(add))
        .route(
            "/items/{id}",
            get(|Path(id): Path<u32>| async move { format!("item {id}") }),
        )
        .route("/echo", post(echo))
        .route("/length", post(length))
        .route("/zeros", get(zeros))
        .route("/ticks", get(ticks))
        .route("/slow", get(slow))
        .route("/block", get(block))
        .route("/blocking", get(blocking))
        .route("/urgent/level", get(level))
        .route("/level", get(level))
        .route("/big", get(|| async { Bytes::from(vec![b'x'; 1 << 20]) }))
        .fallback(|| async { (StatusCode::NOT_FOUND, "no such thing") })
        .layer(middleware::from_fn_with_state(requests.clone(), count))
        .with_state(requests)
}

/// A server that runs on a thread. Dropping it ends the server and its requests.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) handle: upshift::Handle,
    end: Arc<Notify>,
    thread: Option<JoinHandle<()>>,
}

impl TestServer {
    /// Starts a server whose settings `set` completes.
    pub(crate) fn start(
        vcpus: usize,
        set: impl FnOnce(Server) -> Server + Send + 'static,
    ) -> TestServer {
        TestServer::start_on(upshift::Runtime::builder().vcpus(vcpus), set)
    }

    pub(crate) fn start_on(
        builder: upshift::Builder,
        set: impl FnOnce(Server) -> Server + Send + 'static,
    ) -> TestServer {
        let (send, receive) = mpsc::channel();
        let end = Arc::new(Notify::new());
        let end_requested = end.clone();
        let thread = std::thread::spawn(move || {
            let runtime = builder.build().unwrap();
            let handle = runtime.handle();
            runtime.block_on(async move {
                let listener = TcpListener::bind("127.0.0.1:0").unwrap();
                let address = listener.local_addr().unwrap();
                send.send((address, handle)).unwrap();
                let server = Server::new(listener)
                    .with_graceful_shutdown(async move { end_requested.notified().await });
                set(server).run(app()).await.unwrap();
            });
        });
        let (address, handle) = receive.recv().unwrap();
        TestServer {
            address,
            handle,
            end,
            thread: Some(thread),
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream
    }

    /// Sends `bytes` on a new connection, and returns all bytes that the server sends before it
    /// closes the connection.
    pub(crate) fn exchange(&self, bytes: impl AsRef<[u8]>) -> String {
        let mut stream = self.connect();
        stream.write_all(bytes.as_ref()).unwrap();
        let mut answer = Vec::new();
        // The connection may end with a reset.
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    pub(crate) fn end(&self) {
        self.end.notify_one();
    }

    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        self.end();
        let result = self.thread.take().map(JoinHandle::join);
        if !std::thread::panicking() {
            assert!(
                matches!(result, Some(Ok(()))),
                "the server failed or panicked"
            );
        }
    }
}
