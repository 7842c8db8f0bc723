//! What the coroutine servers share: a runtime, listeners at their levels, an
//! accept loop each, and an orderly end at SIGTERM or SIGINT.

use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use anyhow::Context;
use upshift::net::{TcpListener, TcpStream};
use upshift::signal::{self, Signal};
use upshift::{Level, Runtime, time};

use super::{Address, ServerOptions};

/// Runs `converse` for every connection, at the level of the address it came in
/// by, until SIGTERM or SIGINT.
pub(super) fn serve<F, C>(options: &ServerOptions, converse: F) -> anyhow::Result<()>
where
    F: Fn(TcpStream, Level) -> C + Clone + Send + 'static,
    C: Future<Output = io::Result<()>> + Send + 'static,
{
    // Further vCPUs than CPUs named share these CPUs in turn.
    let pins = options.pin.iter().copied().cycle().take(options.vcpus);
    let runtime = Runtime::builder()
        .vcpus(options.vcpus)
        .pin(pins)
        .name("server")
        .build()
        .context("the runtime could not be built")?;
    runtime.block_on(async {
        // Before the addresses are announced: whoever reads them may stop us.
        let mut interrupt = Signal::new(signal::SIGINT)?;
        let mut terminate = Signal::new(signal::SIGTERM)?;
        let mut bound = Vec::new();
        for &Address { address, level } in &options.addresses {
            let level = Level::new(level)?;
            let listener = TcpListener::bind(address)
                .map_err(super::bind_advice)
                .with_context(|| format!("cannot listen on {address}"))?;
            bound.push(listener.local_addr()?);
            let converse = converse.clone();
            upshift::spawn(accept(listener, level, converse), level).detach();
        }
        super::announce(bound)?;
        let mut interrupted = pin!(interrupt.recv());
        let mut terminated = pin!(terminate.recv());
        poll_fn(|cx| match interrupted.as_mut().poll(cx) {
            Poll::Ready(result) => Poll::Ready(result),
            Poll::Pending => terminated.as_mut().poll(cx),
        })
        .await?;
        Ok(())
    })
}

async fn accept<F, C>(listener: TcpListener, level: Level, converse: F)
where
    F: Fn(TcpStream, Level) -> C,
    C: Future<Output = io::Result<()>> + Send + 'static,
{
    let mut reported = false;
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let conversation = converse(stream, level);
                upshift::spawn(report(conversation, peer), level).detach();
            }
            Err(error) => {
                if !std::mem::replace(&mut reported, true) {
                    eprintln!(
                        "accept: {error}; going on every 50 ms (for EMFILE raise `ulimit -n`)"
                    );
                }
                time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

/// A conversation that ends with something the client did wrong is worth a line;
/// one that the client just left is not.
async fn report(conversation: impl Future<Output = io::Result<()>>, peer: SocketAddr) {
    if let Err(error) = conversation.await
        && matches!(
            error.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof
        )
    {
        eprintln!("{peer}: {error}; connection closed");
    }
}
