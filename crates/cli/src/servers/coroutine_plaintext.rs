//! The plaintext server with one coroutine per connection.
//!
//! Requests are answered as they lie in the receive buffer of the vCPU; only one
//! that is cut by its end is copied. All replies to what came at once leave in
//! one write.

use std::io;

use upshift::Level;
use upshift::net::TcpStream;
use upshift_load::http;

use super::ServerOptions;
use super::coroutine;

/// Serves until SIGTERM or SIGINT.
pub(crate) fn serve(options: &ServerOptions) -> anyhow::Result<()> {
    coroutine::serve(options, |stream, _: Level| converse(stream))
}

async fn converse(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    // What is left of a request whose end has not come.
    let mut head: Vec<u8> = Vec::new();
    let mut replies = Vec::new();
    loop {
        let data = stream.recv().await?;
        if data.is_empty() {
            return Ok(());
        }
        let scan = if head.is_empty() {
            let scan = http::answer(&data, &mut replies);
            head.extend_from_slice(&data[scan.consumed..]);
            scan
        } else {
            head.extend_from_slice(&data);
            let scan = http::answer(&head, &mut replies);
            head.drain(..scan.consumed);
            scan
        };
        drop(data);
        if !replies.is_empty() {
            let (result, buffer) = stream.write_all(replies).await;
            result?;
            replies = buffer;
            replies.clear();
        }
        if scan.close {
            return finish(stream).await;
        }
    }
}

/// Ends the conversation so that the client gets the last reply: what it still
/// sends is read and thrown away, for a close with unread data resets the
/// connection. A client that does not stop is left after a bounded amount.
async fn finish(mut stream: TcpStream) -> io::Result<()> {
    stream.shutdown(std::net::Shutdown::Write)?;
    for _ in 0..64 {
        if stream.recv().await?.is_empty() {
            return Ok(());
        }
    }
    Ok(())
}
