//! Tests that the kernel handles packets at the level of the calls that wait for them.

use core::sync::atomic::Ordering::SeqCst;

use os_user::coroutine::current;
use os_user::hogs::Hogs;
use os_user::net::{SELF, connect_async, listen};
use os_user::testing::{Outcome, message};
use os_user::{ensure, now, sys, ticks_per_second};

use crate::stream::{flatten_outcome, send_and_check, server};

pub(crate) async fn network_is_as_urgent_as_its_most_urgent_waiter() -> Outcome {
    beside_hogs(async {
        let server = server(1007, 1)?;
        send_and_check(1007, 3_000).await?;
        flatten_outcome(server.await)
    })
    .await
}

/// The answer of a listener without a waiting thread is as urgent as the connecting call. It
/// arrives at once, not after a retransmission, a second later.
pub(crate) async fn answer_of_a_listener_is_as_urgent_as_the_call() -> Outcome {
    beside_hogs(async {
        let listener = listen(1008, 1).map_err(message)?;
        let socket = sys::socket().map_err(message)? as usize;
        let begin = now();
        let answer = connect_async(socket, SELF, 1008, current()).await;
        answer.map_err(message)?;
        let micros = (now() - begin) * 1_000_000 / ticks_per_second();
        for file in [socket, listener] {
            sys::close(file).map_err(message)?;
        }
        let is_exact = os_user::argument() == b"exact";
        ensure!(!is_exact || micros < 10_000, "connected after {micros} µs");
        Ok(())
    })
    .await
}

/// Runs a future while less urgent threads, the hogs, compute on all harts.
pub(crate) async fn beside_hogs(test: impl Future<Output = Outcome>) -> Outcome {
    let hogs = Hogs::start(25)?;
    let outcome = test.await;
    hogs.end().store(true, SeqCst);
    let in_time = hogs.join().await;
    outcome.and(in_time)
}
