//! The spin server: a task per request, replies in the order of completion. tokio knows no levels; they are echoed.

use std::io;
use std::sync::Arc;

use bench_kit::server::READ;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{Mutex, Semaphore};
use upshift_load::Burner;
use upshift_load::spin::Frames;

/// Requests of a connection that are under way, at most.
const OUTSTANDING: usize = 256;

/// Serves a connection until its input ends or holds what is no request.
pub(crate) async fn serve(stream: TcpStream, burner: Burner) -> io::Result<()> {
    let (mut reader, writer) = stream.into_split();
    let writer = Arc::new(Mutex::new(writer));
    let room = Arc::new(Semaphore::new(OUTSTANDING));
    let (mut frames, mut input) = (Frames::default(), vec![0; READ]);
    loop {
        let count = reader.read(&mut input).await?;
        if count == 0 {
            return Ok(());
        }
        let mut chunk = &input[..count];
        while let Some(request) = frames.next(&mut chunk).map_err(io::Error::other)? {
            let permit = room.clone().acquire_owned().await;
            let writer = writer.clone();
            tokio::spawn(async move {
                burner.burn(request.service);
                let mut writer = writer.lock().await;
                // A client that is gone is noticed by the reader.
                let _ = writer.write_all(&request.bytes()).await;
                drop(permit);
            });
        }
    }
}
