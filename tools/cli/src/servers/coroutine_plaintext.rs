//! The plaintext server with one coroutine per connection.
//!
//! The coroutine receives, answers all complete requests with one write, and receives again. Its
//! memory is at most one incomplete request head and the replies to one read; a connection without
//! requests holds no receive buffer.

use anyhow::Result;
use upshift_load::requests::Requests;

use super::args::ServerArgs;
use super::coroutine::{self, Client};

pub(crate) fn serve(args: &ServerArgs) -> Result<()> {
    coroutine::run("plaintext-server", args, |client| {
        let level = client.level;
        upshift::spawn(serve_connection(client), level).detach();
    })
}

async fn serve_connection(client: Client) {
    let mut stream = client.stream;
    let (mut requests, mut replies) = (Requests::default(), Vec::new());
    loop {
        let Ok(data) = stream.recv().await else {
            return;
        };
        if data.is_empty() {
            return;
        }
        let is_open = requests.feed(&data, &mut replies);
        // The buffer returns to the vCPU before the wait for a client that does not read.
        drop(data);
        if !replies.is_empty() {
            let (result, written) = stream.write_all(replies).await;
            if result.is_err() {
                return;
            }
            replies = written;
            replies.clear();
        }
        if !is_open {
            let (mut input, output) = stream.into_split();
            // Shuts down the sending direction; the client sees the end of the replies.
            drop(output);
            return coroutine::discard(&mut input).await;
        }
    }
}
