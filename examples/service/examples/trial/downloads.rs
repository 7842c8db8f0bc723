//! Runs clients that read a long file slowly, at a fixed pace.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpSocket;

use crate::Result;

/// Name and content of a short file.
pub const SMALL: &str = "small.txt";
/// Name of the long file.
const BIG: &str = "big.bin";
/// Length of the long file, in bytes.
const LENGTH: u64 = 256 << 20;
/// Number of bytes that a client reads at once. With the pause after it, this makes 160 kB/s.
const PIECE: usize = 16 << 10;
/// Pause after each read.
const PAUSE: Duration = Duration::from_millis(100);

/// Creates the short and the long file.
pub fn make_files(folder: &Path) -> Result<()> {
    fs::write(folder.join(SMALL), SMALL)?;
    fs::File::create(folder.join(BIG))?.set_len(LENGTH)?;
    Ok(())
}

#[derive(Default)]
struct Shared {
    bytes: AtomicU64,
    is_stopped: AtomicBool,
}

pub struct Downloads {
    shared: Arc<Shared>,
    thread: thread::JoinHandle<Result<()>>,
    start: std::cell::Cell<(u64, Instant)>,
}

pub fn start(address: SocketAddr, count: usize) -> Result<Downloads> {
    let shared = Arc::new(Shared::default());
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client_state = shared.clone();
    let thread = thread::spawn(move || {
        lower_priority();
        runtime.block_on(async {
            let downloads: Vec<_> = (0..count)
                .map(|_| tokio::spawn(download(address, client_state.clone())))
                .collect();
            for download in downloads {
                download.await??;
            }
            Ok(())
        })
    });
    Ok(Downloads {
        shared,
        thread,
        start: std::cell::Cell::new((0, Instant::now())),
    })
}

/// Lowers the calling thread's priority. The thread stands in for the machines of all clients, and
/// should take as little CPU time from the service and its databases as possible.
fn lower_priority() {
    // SAFETY: the call takes no pointers; 0 is the calling thread. A thread may always lower its
    // priority.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 19) };
}

async fn download(address: SocketAddr, shared: Arc<Shared>) -> Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_recv_buffer_size(64 << 10)?;
    let mut stream = socket.connect(address).await?;
    let request = format!("GET /files/{BIG} HTTP/1.1\r\nHost: here\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut piece = vec![0; PIECE];
    while !shared.is_stopped.load(Ordering::Relaxed) {
        let count = stream.read(&mut piece).await?;
        if count == 0 {
            return Err("a download ended".into());
        }
        shared.bytes.fetch_add(count as u64, Ordering::Relaxed);
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

impl Downloads {
    /// Starts the measurement of the rate.
    pub fn mark(&self) {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        self.start.set((bytes, Instant::now()));
    }

    /// Ends the downloads, and returns their rate in MB/s.
    pub fn stop(self) -> Result<u64> {
        let (bytes_before, start) = self.start.get();
        let bytes = self.shared.bytes.load(Ordering::Relaxed) - bytes_before;
        let rate = bytes as f64 / start.elapsed().as_secs_f64() / 1e6;
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| "a download panicked")??;
        Ok(rate as u64)
    }
}
