//! Priority lending: a less urgent coroutine holds a lock that an urgent one wants, and
//! one in between wants the CPU. Without lending the one in between would go
//! first (priority inversion); with it the holder runs at the urgent level until
//! it gives the lock back.
//!
//! Run it with `cargo run -p upshift --example priority_mutex`.

use std::sync::Arc;

use upshift::sync::{Mutex, oneshot};
use upshift::{Level, yield_now};

#[upshift::main(vcpus = 1)]
async fn main() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let shared = Arc::new(Mutex::new(0));

    let (holding, held) = oneshot::channel();
    let holder = {
        let (shared, order) = (shared.clone(), order.clone());
        upshift::spawn(
            async move {
                let mut value = shared.lock().await;
                holding.send(()).expect("main waits");
                for _ in 0..3 {
                    *value += 1;
                    yield_now().await;
                }
                drop(value);
                // The loan has ended: the coroutine is back at its own level.
                yield_now().await;
                order.lock().await.push("less urgent holder");
            },
            Level::at::<50>(),
        )
    };
    held.await.expect("it takes the lock");

    let urgent = {
        let (shared, order) = (shared.clone(), order.clone());
        upshift::spawn(
            async move {
                let value = *shared.lock().await;
                order.lock().await.push("urgent");
                value
            },
            Level::at::<2>(),
        )
    };
    let between = {
        let order = order.clone();
        upshift::spawn(
            async move { order.lock().await.push("in between") },
            Level::at::<20>(),
        )
    };
    assert_eq!(urgent.await.expect("no panic"), 3);
    between.await.expect("no panic");
    holder.await.expect("no panic");
    let order = order.lock().await;
    println!("{}", order.join(", then "));
    assert_eq!(*order, ["urgent", "in between", "less urgent holder"]);
}
