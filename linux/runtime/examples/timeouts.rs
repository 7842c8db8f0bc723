//! Cancellation and timeouts: a dropped future cancels its operation in the kernel, too, and its
//! buffers live until the kernel has finished with them; a handle cancels a coroutine; the first of
//! several futures wins, and the others are dropped.
//!
//! Run it with `cargo run -p upshift --example timeouts`.

use std::io;
use std::time::{Duration, Instant};

use upshift::io::AsyncReadExt;
use upshift::net::{TcpListener, TcpStream};
use upshift::process::Command;
use upshift::{Priority, time};

#[upshift::main]
async fn main() -> io::Result<()> {
    // This server accepts connections and never sends data.
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;

    // A time limit on a single step cancels the read, and the stream remains usable.
    let mut stream = TcpStream::connect(address).await?;
    let mut byte = [0];
    let read = time::timeout(Duration::from_millis(20), stream.read_exact(&mut byte));
    println!("the read: {}", describe(read.await.is_err()));

    // A time limit on a block ends whichever wait the block is in.
    let conversation = time::timeout(Duration::from_millis(20), async {
        let mut stream = TcpStream::connect(address).await?;
        let (count, _) = stream.read(vec![0; 4096]).await;
        count
    });
    println!(
        "the conversation: {}",
        describe(conversation.await.is_err())
    );

    // A coroutine is cancelled through its handle, and its guard is dropped.
    struct Guard;
    impl Drop for Guard {
        fn drop(&mut self) {
            println!("the coroutine has tidied up");
        }
    }
    let endless_task = upshift::spawn(
        async {
            let _guard = Guard;
            std::future::pending::<()>().await;
        },
        Priority::Inherit,
    );
    time::sleep(Duration::from_millis(5)).await;
    endless_task.cancel();
    match endless_task.await {
        Err(error) if error.is_cancelled() => println!("and says that it was cancelled"),
        other => println!("unexpected: {other:?}"),
    }

    // The first future wins, and the slower child process is killed.
    let start = Instant::now();
    let mut slow_child = Command::new("sleep");
    slow_child.arg("10").kill_on_drop(true);
    let winner = first(slow_child.status(), time::sleep(Duration::from_millis(10))).await;
    println!("{winner} was first, after {:?}", start.elapsed());
    Ok(())
}

fn describe(timed_out: bool) -> &'static str {
    if timed_out { "timed out" } else { "answered" }
}

async fn first<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> &'static str {
    use futures_util::future::{Either, select};
    match select(std::pin::pin!(a), std::pin::pin!(b)).await {
        Either::Left(_) => "the child",
        Either::Right(_) => "the clock",
    }
}
