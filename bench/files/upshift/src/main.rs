//! File benchmarks on Upshift. All tasks have level 0 (the most urgent), except the bulk writes at
//! level 40.

use std::net::TcpStream;
use std::path::PathBuf;

use bench_kit::files::{BLOCK, Buffer, Host, Plan, page_aligned, run};
use upshift::fs::{self, File};
use upshift::{Level, Runtime};
use upshift_ring::{IoBuf, IoBufMut};

struct Upshift;

/// A [`Buffer`] that operations of Upshift can carry.
struct Carried(Buffer);

// SAFETY: the pointer stays valid, as `IoBuf` requires: the memory is never freed, and moving the
// reference does not move the memory.
unsafe impl IoBuf for Carried {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_ptr(&self) -> *const u8 {
        self.0.as_ptr()
    }

    fn io_len(&self) -> usize {
        self.0.len()
    }
}

// SAFETY: as above. The memory may be written, because the reference is exclusive.
unsafe impl IoBufMut for Carried {
    const DROP_RUNS_USER_CODE: bool = false;

    fn io_mut_ptr(&mut self) -> *mut u8 {
        self.0.as_mut_ptr()
    }

    fn io_capacity(&self) -> usize {
        self.0.len()
    }

    unsafe fn set_filled(&mut self, _count: usize) {}
}

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

    async fn read_whole(path: PathBuf) -> Vec<u8> {
        fs::read(path).await.expect("read failed")
    }

    async fn read(file: &File, buffer: Buffer, offset: u64) -> Buffer {
        let (count, Carried(buffer)) = file.read_at(Carried(buffer), offset).await;
        assert_eq!(count.expect("read failed"), buffer.len());
        buffer
    }

    async fn write(file: &File, buffer: Buffer, offset: u64) -> Buffer {
        let (result, Carried(buffer)) = file.write_all_at(Carried(buffer), offset).await;
        result.expect("write failed");
        buffer
    }

    async fn sync(file: &File) {
        file.sync_data().await.expect("sync failed");
    }

    async fn serve(stream: TcpStream, file: File) {
        let mut stream = upshift::net::TcpStream::from_std(stream).expect("registration failed");
        let mut number = [0; 8];
        let mut length = 0;
        let mut buffer = page_aligned(BLOCK);
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
                    let (result, Carried(written_buffer)) = stream.write_all(Carried(buffer)).await;
                    result.expect("the driver reads");
                    buffer = written_buffer;
                }
            }
        }
    }
}

fn main() {
    let runtime = Runtime::builder().vcpus(1).build();
    let runtime = runtime.expect("a runtime can be built");
    runtime.block_on(async {
        let task = upshift::spawn_local(run::<Upshift>(Plan::from_args()), Level::MOST_URGENT);
        task.await.expect("the task does not panic");
    });
}
