//! An axum application with the same source and the same hyper on Upshift and on tokio
//! (current_thread, or multi_thread with one worker). `/json?name=` answers with a little JSON, and
//! `/orders?count=` with an array of the given length. `/matrix?n=` computes a product of
//! matrices, without a hint to either runtime.
//!
//! The other variants prefer requests with `Priority: u=0` at `/matrix`, by the means of each
//! runtime. `levels` uses a level per request on Upshift. On tokio, `two-nice` and `two-idle`
//! compute the other requests on a second runtime, and `blocking-rest` computes them on a bounded
//! pool. `blocking` computes all requests by `spawn_blocking`, which has 512 threads by default.

use std::io;

use axum::extract::Query;
use axum::http::{HeaderMap, StatusCode};
use axum::routing::{MethodRouter, get};
use axum::{Json, Router};
use bench_kit::server::{Args, listen, parse_args_for};
use serde::{Deserialize, Serialize};
use tokio::runtime::Builder;
use upshift::Level;

#[derive(Deserialize)]
struct Person {
    name: String,
}

#[derive(Serialize)]
struct Greeting {
    message: String,
    length: usize,
    tags: [&'static str; 3],
}

async fn json(Query(person): Query<Person>) -> Json<Greeting> {
    Json(Greeting {
        length: person.name.len(),
        message: format!("Hello, {}!", person.name),
        tags: ["a", "b", "c"],
    })
}

#[derive(Deserialize)]
struct Count {
    count: u32,
}

#[derive(Serialize)]
struct Order {
    id: u32,
    customer: String,
    lines: [Line; 3],
    total: f64,
}

#[derive(Serialize)]
struct Line {
    article: u32,
    quantity: u32,
    price: f64,
}

/// Converts records to JSON, as an application does.
async fn orders(Query(Count { count }): Query<Count>) -> Json<Vec<Order>> {
    let order = |id: u32| {
        let line = |index: u32| Line {
            article: id * 7 + index,
            quantity: 1 + (id + index) % 5,
            price: f64::from(id % 90 + index) + 0.25,
        };
        let lines = [line(0), line(1), line(2)];
        let cost = |line: &Line| f64::from(line.quantity) * line.price;
        Order {
            id,
            customer: format!("customer {}", id % 100),
            total: lines.iter().map(cost).sum(),
            lines,
        }
    };
    Json((0..count.min(10_000)).map(order).collect())
}

#[derive(Deserialize)]
struct Size {
    n: usize,
}

#[derive(Serialize)]
struct Product {
    n: usize,
    trace: u64,
}

async fn matrix(Query(Size { n }): Query<Size>) -> Json<Product> {
    Json(product(n))
}

/// Returns the product that `/matrix` of `upshift serve` computes.
fn product(n: usize) -> Product {
    let n = n.clamp(1, 512);
    let cell = |row: usize, column: usize| ((row * 31 + column * 17) % 10) as f64;
    let a: Vec<f64> = (0..n * n).map(|index| cell(index / n, index % n)).collect();
    let b: Vec<f64> = (0..n * n).map(|index| cell(index % n, index / n)).collect();
    let mut sums = vec![0.0; n];
    let mut trace = 0.0_f64;
    for i in 0..n {
        sums.fill(0.0);
        for (k, left) in a[i * n..][..n].iter().enumerate() {
            for (sum, right) in sums.iter_mut().zip(&b[k * n..][..n]) {
                *sum += left * right;
            }
        }
        trace += sums[i];
    }
    // The trace is a sum of integers, and the other servers print it without a fraction.
    let trace = trace as u64;
    Product { n, trace }
}

fn is_urgent(headers: &HeaderMap) -> bool {
    let priority = headers.get("priority");
    priority.is_some_and(|value| value.as_bytes().starts_with(b"u=0"))
}

fn app(matrix: MethodRouter) -> Router {
    Router::new()
        .route("/json", get(json))
        .route("/orders", get(orders))
        .route("/matrix", matrix)
}

const VARIANTS: [&str; 8] = [
    "upshift",
    "levels",
    "tokio-ct",
    "tokio-mt",
    "two-nice",
    "two-idle",
    "blocking-rest",
    "blocking",
];

fn main() -> io::Result<()> {
    let args = parse_args_for(&[("app", ())], &VARIANTS);
    let one_thread = Builder::new_current_thread();
    match args.variant.as_str() {
        "upshift" => on_upshift(&args),
        "levels" => with_levels(&args),
        "two-nice" => two_runtimes(&args, nice_19),
        "two-idle" => two_runtimes(&args, sched_idle),
        "blocking-rest" => blocking_rest(&args),
        "blocking" => on_tokio(&args, one_thread, app(get(blocking))),
        "tokio-mt" => {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(1);
            on_tokio(&args, builder, app(get(matrix)))
        }
        _ => on_tokio(&args, one_thread, app(get(matrix))),
    }
}

fn on_upshift(args: &Args<()>) -> io::Result<()> {
    let builder = upshift::Runtime::builder().vcpus(1).pin([0]);
    let runtime = builder.preemption(upshift::Preemption::Off).build()?;
    runtime.block_on(async {
        let listener = upshift::net::TcpListener::from_std(listen(args)?)?;
        upshift::hyper::serve(listener, app(get(matrix))).await
    })
}

/// Serves urgent requests at one level, and all other requests at another.
fn with_levels(args: &Args<()>) -> io::Result<()> {
    let runtime = upshift::Runtime::builder().vcpus(1).pin([0]).build()?;
    runtime.block_on(async {
        let listener = upshift::net::TcpListener::from_std(listen(args)?)?;
        upshift::axum::serve(listener, app(get(matrix)))
            .receive_level(Level::HIGH)
            .levels(|request| {
                if is_urgent(request.headers()) {
                    Level::HIGH
                } else {
                    Level::LOW
                }
            })
            .await
    })
}

fn on_tokio(args: &Args<()>, mut builder: Builder, app: Router) -> io::Result<()> {
    use axum::serve::ListenerExt;
    builder.enable_io().build()?.block_on(async {
        let listener = listen(args)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        // The server has its own task, like Upshift's `Server`, rather than that of `block_on`.
        let server_task = tokio::spawn(async move { axum::serve(listener, app).await });
        server_task.await.map_err(io::Error::other)?
    })
}

/// Reply of a handler that computes outside of the accepting task.
type Computed = Result<Json<Product>, StatusCode>;

/// Computes urgent requests on the runtime that accepts connections, and all other requests on a
/// second runtime, whose only thread calls `lower` first.
fn two_runtimes(args: &Args<()>, lower: fn()) -> io::Result<()> {
    let mut builder = Builder::new_multi_thread();
    let background = builder.worker_threads(1).on_thread_start(lower).build()?;
    let handle = background.handle().clone();
    let matrix = |headers: HeaderMap, Query(Size { n }): Query<Size>| async move {
        if is_urgent(&headers) {
            return Computed::Ok(Json(product(n)));
        }
        let computed = handle.spawn(async move { product(n) }).await;
        computed.map(Json).map_err(failed)
    };
    on_tokio(args, Builder::new_current_thread(), app(get(matrix)))
}

/// Computes urgent requests in their handlers, and all other requests by `spawn_blocking` on as
/// many threads as the process has CPUs.
fn blocking_rest(args: &Args<()>) -> io::Result<()> {
    let matrix = |headers: HeaderMap, size: Query<Size>| async move {
        if is_urgent(&headers) {
            return Computed::Ok(matrix(size).await);
        }
        blocking(size).await
    };
    let mut builder = Builder::new_current_thread();
    builder.max_blocking_threads(std::thread::available_parallelism()?.get());
    on_tokio(args, builder, app(get(matrix)))
}

async fn blocking(Query(Size { n }): Query<Size>) -> Computed {
    let computed = tokio::task::spawn_blocking(move || product(n)).await;
    computed.map(Json).map_err(failed)
}

fn failed(_: tokio::task::JoinError) -> StatusCode {
    StatusCode::INTERNAL_SERVER_ERROR
}

/// Gives the calling thread the smallest weight among ordinary threads.
fn nice_19() {
    // SAFETY: `setpriority` takes no pointers. On Linux, 0 means the calling thread.
    let result = unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
    assert_eq!(result, 0, "a thread may always lower its priority");
}

/// Makes the calling thread run only when no ordinary thread is ready, apart from a small share.
fn sched_idle() {
    let param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the pointer is valid, because the call only reads `param`, an initialized local. 0
    // means the calling thread.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_IDLE, &raw const param) };
    assert_eq!(result, 0, "a thread may always lower its priority");
}
