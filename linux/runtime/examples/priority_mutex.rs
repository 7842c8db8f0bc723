//! Priority lending: a less urgent coroutine holds a mutex for which an urgent one waits, and a
//! third coroutine, of a level in between, is ready. Without lending, the third coroutine would run
//! before the holder (priority inversion). With lending, the holder runs at the urgent level until
//! it releases the mutex. A lower number is a more urgent level.
//!
//! Run it with `cargo run -p upshift --example priority_mutex`.

use std::sync::Arc;

use upshift::sync::{Mutex, oneshot};
use upshift::{Level, yield_now};

#[upshift::main(vcpus = 1)]
async fn main() {
    let order = Arc::new(Mutex::new(Vec::new()));
    let counter = Arc::new(Mutex::new(0));

    let (locked_sender, locked_receiver) = oneshot::channel();
    let holder = {
        let (counter, order) = (counter.clone(), order.clone());
        upshift::spawn(
            async move {
                let mut value = counter.lock().await;
                locked_sender
                    .send(())
                    .expect("the main coroutine has ended");
                for _ in 0..3 {
                    *value += 1;
                    yield_now().await;
                }
                drop(value);
                // Lending has ended, and the coroutine has its own level again.
                yield_now().await;
                order.lock().await.push("less urgent holder");
            },
            Level::at::<50>(),
        )
    };
    locked_receiver.await.expect("the holder has ended");

    let urgent = {
        let (counter, order) = (counter.clone(), order.clone());
        upshift::spawn(
            async move {
                let value = *counter.lock().await;
                order.lock().await.push("urgent");
                value
            },
            Level::at::<2>(),
        )
    };
    let middle = {
        let order = order.clone();
        upshift::spawn(
            async move { order.lock().await.push("in between") },
            Level::at::<20>(),
        )
    };
    assert_eq!(urgent.await.expect("the urgent coroutine panicked"), 3);
    middle.await.expect("the coroutine in between panicked");
    holder.await.expect("the holder panicked");
    let order = order.lock().await;
    println!("{}", order.join(", then "));
    assert_eq!(*order, ["urgent", "in between", "less urgent holder"]);
}
