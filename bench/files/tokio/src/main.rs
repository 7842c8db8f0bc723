//! File benchmarks on `tokio::fs`, with the runtime `current_thread`. Reads and writes at a
//! position are calls of the standard library under `spawn_blocking`. This favours tokio, because
//! its own `File` would seek on the pool, then read on the pool, and copy.

use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use bench_kit::files::{BLOCK, Buffer, Host, Plan, page_aligned, run};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::{LocalSet, spawn_blocking, spawn_local};

struct Tokio;

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> std::io::Result<T> + Send + 'static,
) -> T {
    let result = spawn_blocking(work).await.expect("work does not panic");
    result.expect("file operation failed")
}

impl Host for Tokio {
    type File = Arc<std::fs::File>;

    fn spawn(
        _is_less_urgent: bool,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> {
        let handle = spawn_local(task);
        async move { handle.await.expect("tasks do not panic") }
    }

    fn file(file: std::fs::File) -> Self::File {
        Arc::new(file)
    }

    async fn read_whole(path: PathBuf) -> Vec<u8> {
        tokio::fs::read(path).await.expect("read failed")
    }

    async fn read(file: &Self::File, buffer: Buffer, offset: u64) -> Buffer {
        let file = file.clone();
        blocking(move || file.read_exact_at(buffer, offset).map(|()| buffer)).await
    }

    async fn write(file: &Self::File, buffer: Buffer, offset: u64) -> Buffer {
        let file = file.clone();
        blocking(move || file.write_all_at(buffer, offset).map(|()| buffer)).await
    }

    async fn sync(file: &Self::File) {
        let file = file.clone();
        blocking(move || file.sync_data()).await;
    }

    async fn serve(stream: TcpStream, file: Self::File) {
        stream.set_nonblocking(true).expect("cannot set flags");
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("registration failed");
        let mut buffer = page_aligned(BLOCK);
        while let Ok(block) = stream.read_u64_le().await {
            buffer = Self::read(&file, buffer, block * BLOCK as u64).await;
            stream.write_all(buffer).await.expect("the driver reads");
        }
    }
}

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = runtime.expect("a runtime can be built");
    LocalSet::new().block_on(&runtime, run::<Tokio>(Plan::from_args()));
}
