//! Producers and a consumer, as in the SharedScheduler papers: a bounded queue between coroutines,
//! and a consumer that is more urgent, so that the queue stays short.
//!
//! Run it with `cargo run -p upshift --example producer_consumer`.

use upshift::Level;
use upshift::sync::mpsc;

#[upshift::main(vcpus = 1)]
async fn main() {
    let (sender, mut receiver) = mpsc::channel(16);
    let consumer = upshift::spawn(
        async move {
            let mut sum = 0u64;
            while let Some(item) = receiver.recv().await {
                sum += item;
            }
            sum
        },
        Level::at::<8>(),
    );
    for producer in 0..4u64 {
        let sender = sender.clone();
        upshift::spawn(
            async move {
                for n in 0..1000 {
                    // The send fails if the consumer has ended.
                    if sender.send(producer * 1000 + n).await.is_err() {
                        return;
                    }
                }
            },
            Level::at::<16>(),
        )
        .detach();
    }
    drop(sender);
    let sum = consumer.await.expect("the consumer panicked");
    println!("the sum of 4000 items is {sum}");
    assert_eq!(sum, (0..4000).sum::<u64>());
}
