//! File benchmarks on compio, which uses io_uring, with its default settings.

use std::net::TcpStream;
use std::os::fd::{FromRawFd, IntoRawFd};
use std::path::PathBuf;

use bench_kit::files::{BLOCK, Buffer, Host, Plan, page_aligned, run};
use compio::BufResult;
use compio::fs::File;
use compio::io::{AsyncReadAtExt, AsyncReadExt, AsyncWriteAtExt, AsyncWriteExt};
use compio::runtime::{Runtime, spawn};

struct Compio;

impl Host for Compio {
    type File = File;

    fn spawn(
        _is_less_urgent: bool,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> {
        let handle = spawn(task);
        async move {
            let _ = handle.await;
        }
    }

    fn file(file: std::fs::File) -> File {
        // SAFETY: the descriptor is open, and `into_raw_fd` has released it, so the new file is its
        // only owner.
        unsafe { File::from_raw_fd(file.into_raw_fd()) }
    }

    async fn read_whole(path: PathBuf) -> Vec<u8> {
        compio::fs::read(path).await.expect("read failed")
    }

    async fn read(file: &File, buffer: Buffer, offset: u64) -> Buffer {
        let BufResult(result, buffer) = file.read_exact_at(buffer, offset).await;
        result.expect("read failed");
        buffer
    }

    async fn write(file: &File, buffer: Buffer, offset: u64) -> Buffer {
        let mut file = file;
        let BufResult(result, buffer) = (&mut file).write_all_at(buffer, offset).await;
        result.expect("write failed");
        buffer
    }

    async fn sync(file: &File) {
        file.sync_data().await.expect("sync failed");
    }

    async fn serve(stream: TcpStream, file: File) {
        stream.set_nonblocking(true).expect("cannot set flags");
        let mut stream = compio::net::TcpStream::from_std(stream).expect("registration failed");
        let mut buffer = page_aligned(BLOCK);
        let mut number = vec![0; 8];
        loop {
            let BufResult(result, request) = stream.read_exact(number).await;
            if result.is_err() {
                return;
            }
            let block = bench_kit::files::first_word(&request);
            number = request;
            buffer = Self::read(&file, buffer, block * BLOCK as u64).await;
            let BufResult(result, written_buffer) = stream.write_all(buffer).await;
            result.expect("the driver reads");
            buffer = written_buffer;
        }
    }
}

fn main() {
    let runtime = Runtime::new().expect("a runtime can be built");
    runtime.block_on(run::<Compio>(Plan::from_args()));
}
