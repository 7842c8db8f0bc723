//! The plaintext server with one coroutine per connection.
//!
//! It receives, answers all complete requests of what it has with one write, and receives again.
//! Its memory is at most one incomplete request head and the replies to one read; a connection
//! without requests holds no receive buffer.

use anyhow::Result;
use upshift_load::http;

use super::coroutine::{self, Client};
use super::options::ServerOptions;

/// `Hello, World!`: a coroutine per connection.
pub(crate) fn serve(options: &ServerOptions) -> Result<()> {
    coroutine::run("plaintext-server", options, |client| {
        let level = client.level;
        upshift::spawn(converse(client), level).detach();
    })
}

async fn converse(client: Client) {
    let mut stream = client.stream;
    // The unanswered end of what was received; empty in the ordinary case, so nothing is copied.
    let mut rest: Vec<u8> = Vec::new();
    let mut replies = Vec::new();
    loop {
        let Ok(data) = stream.recv().await else {
            return;
        };
        if data.is_empty() {
            return;
        }
        let scan = if rest.is_empty() {
            let scan = http::answer(&data, &mut replies);
            rest.extend_from_slice(&data[scan.consumed..]);
            scan
        } else {
            rest.extend_from_slice(&data);
            let scan = http::answer(&rest, &mut replies);
            rest.drain(..scan.consumed);
            scan
        };
        // The buffer goes back to the vCPU before a client that does not read is waited for.
        drop(data);
        if !replies.is_empty() {
            let (result, written) = stream.write_all(replies).await;
            if result.is_err() {
                return;
            }
            replies = written;
            replies.clear();
        }
        if scan.close {
            let (mut input, output) = stream.into_split();
            // Ends the direction of the replies; the client sees the end of them.
            drop(output);
            return coroutine::discard(&mut input).await;
        }
    }
}
