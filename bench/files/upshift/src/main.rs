//! File benchmarks on Upshift: urgent tasks at level 0, bulk writes at level 40.

use std::net::TcpStream;
use std::path::PathBuf;

use bench_kit::files::{BLOCK, Host, Plan, run};
use upshift::fs::{self, File};
use upshift::{Level, Runtime};

struct Upshift;

impl Host for Upshift {
    type File = File;

    fn spawn(
        is_less_urgent: bool,
        task: impl Future<Output = ()> + 'static,
    ) -> impl Future<Output = ()> {
        let level = if is_less_urgent {
            Level::at::<40>()
        } else {
            Level::MOST_URGENT
        };
        let handle = upshift::spawn_local(task, level);
        async move { handle.await.expect("tasks do not panic") }
    }

    fn file(file: std::fs::File) -> File {
        File::from_std(file)
    }

    async fn whole(path: PathBuf) -> Vec<u8> {
        fs::read(path).await.expect("read failed")
    }

    async fn read(file: &File, buffer: Vec<u8>, offset: u64) -> Vec<u8> {
        let (count, buffer) = file.read_at(buffer, offset).await;
        assert_eq!(count.expect("read failed"), buffer.len());
        buffer
    }

    async fn write(file: &File, buffer: Vec<u8>, offset: u64) -> Vec<u8> {
        let (written, buffer) = file.write_all_at(buffer, offset).await;
        written.expect("write failed");
        buffer
    }

    async fn sync(file: &File) {
        file.sync_data().await.expect("sync failed");
    }

    async fn serve(stream: TcpStream, file: File) {
        let mut stream = upshift::net::TcpStream::from_std(stream).expect("registration failed");
        let mut number = [0; 8];
        let mut length = 0;
        let mut buffer = vec![0; BLOCK];
        while let Ok(bytes) = stream.recv().await
            && !bytes.is_empty()
        {
            for &byte in bytes.iter() {
                number[length] = byte;
                length += 1;
                if length == 8 {
                    length = 0;
                    buffer =
                        Self::read(&file, buffer, u64::from_le_bytes(number) * BLOCK as u64).await;
                    let (sent, back) = stream.write_all(buffer).await;
                    sent.expect("the driver reads");
                    buffer = back;
                }
            }
        }
    }
}

fn main() {
    let runtime = Runtime::builder().vcpus(1).build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(async {
        let all = upshift::spawn_local(run::<Upshift>(Plan::of_process()), Level::MOST_URGENT);
        all.await.expect("the task does not panic");
    });
}
