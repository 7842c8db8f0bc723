//! One axum application, the same source and the same hyper, on Upshift and on tokio
//! (current_thread, or multi_thread with one worker): `/json?name=` answers a little JSON,
//! `/orders?count=` as much as is asked for; `/matrix?n=` computes, without a hint to either
//! runtime.

use axum::extract::Query;
use axum::routing::get;
use axum::{Json, Router};
use bench_kit::server::{Args, args_for, listen};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct Who {
    name: String,
}

#[derive(Serialize)]
struct Greeting {
    message: String,
    length: usize,
    tags: [&'static str; 3],
}

async fn json(Query(who): Query<Who>) -> Json<Greeting> {
    Json(Greeting {
        length: who.name.len(),
        message: format!("Hello, {}!", who.name),
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

/// What an application does: records become text.
async fn orders(Query(Count { count }): Query<Count>) -> Json<Vec<Order>> {
    let order = |id: u32| {
        let line = |at: u32| Line {
            article: id * 7 + at,
            quantity: 1 + (id + at) % 5,
            price: f64::from(id % 90 + at) + 0.25,
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
    trace: f64,
}

/// The same work as `/matrix` of `upshift serve`.
async fn matrix(Query(Size { n }): Query<Size>) -> Json<Product> {
    let n = n.clamp(1, 512);
    let cell = |row: usize, column: usize| ((row * 31 + column * 17) % 10) as f64;
    let a: Vec<f64> = (0..n * n).map(|at| cell(at / n, at % n)).collect();
    let b: Vec<f64> = (0..n * n).map(|at| cell(at % n, at / n)).collect();
    let mut sums = vec![0.0; n];
    let mut trace = 0.0;
    for i in 0..n {
        sums.fill(0.0);
        for (k, left) in a[i * n..][..n].iter().enumerate() {
            for (sum, right) in sums.iter_mut().zip(&b[k * n..][..n]) {
                *sum += left * right;
            }
        }
        trace += sums[i];
    }
    Json(Product { n, trace })
}

fn app() -> Router {
    Router::new()
        .route("/json", get(json))
        .route("/orders", get(orders))
        .route("/matrix", get(matrix))
}

fn main() -> std::io::Result<()> {
    let args = args_for(&[("app", ())], &["upshift", "tokio-ct", "tokio-mt"]);
    match args.variant.as_str() {
        "upshift" => on_upshift(&args),
        "tokio-ct" => on_tokio(&args, tokio::runtime::Builder::new_current_thread()),
        _ => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1);
            on_tokio(&args, builder)
        }
    }
}

fn on_upshift(args: &Args<()>) -> std::io::Result<()> {
    let builder = upshift::Runtime::builder().vcpus(1).pin([0]);
    let runtime = builder.preemption(upshift::Preemption::Off).build()?;
    runtime.block_on(async {
        let listener = upshift::net::TcpListener::from_std(listen(args)?)?;
        upshift::hyper::serve(listener, app()).await
    })
}

fn on_tokio(args: &Args<()>, mut builder: tokio::runtime::Builder) -> std::io::Result<()> {
    use axum::serve::ListenerExt;
    builder.enable_io().build()?.block_on(async {
        let listener = listen(args)?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let listener = listener.tap_io(|stream| {
            let _ = stream.set_nodelay(true);
        });
        // As `Server` of Upshift, in a task of its own, not in that of `block_on`.
        let served = tokio::spawn(async move { axum::serve(listener, app()).await });
        served.await.map_err(std::io::Error::other)?
    })
}
