//! The network is as urgent as what waits for it.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;

use os_user::coroutine::current;
use os_user::net::{SELF, connect_async, listen};
use os_user::testing::{Outcome, text};
use os_user::{ensure, now, sys, thread, ticks_per_second};

use crate::stream::{ended, send_and_check, server};

pub(crate) async fn network_is_as_urgent_as_what_waits_for_it() -> Outcome {
    beside_hogs(async {
        let server = server(1007, 1)?;
        send_and_check(1007, 3_000).await?;
        ended(server.await)
    })
    .await
}

/// Nobody waits at the listener: what it answers is as urgent as what has asked, and does not
/// come only when that is sent once more, a second later.
pub(crate) async fn answer_of_a_listener_is_as_urgent_as_the_call() -> Outcome {
    beside_hogs(async {
        let listener = listen(1008, 1).map_err(text)?;
        let socket = sys::socket().map_err(text)? as usize;
        let begin = now();
        let (answer, _) = connect_async(socket, SELF, 1008, current()).await;
        answer.map_err(text)?;
        let micros = (now() - begin) * 1_000_000 / ticks_per_second();
        for file in [socket, listener] {
            sys::close(file).map_err(text)?;
        }
        let is_exact = os_user::argument() == b"exact";
        ensure!(!is_exact || micros < 10_000, "connected after {micros} µs");
        Ok(())
    })
    .await
}

/// Does something while less urgent threads compute on all harts.
pub(crate) async fn beside_hogs(what: impl Future<Output = Outcome>) -> Outcome {
    let over = Arc::new(AtomicBool::new(false));
    let mut hogs = Vec::new();
    for _ in 0..9 {
        let over = over.clone();
        let hog = thread::spawn(move || {
            let _ = sys::set_level(25);
            let limit = now() + 20 * ticks_per_second();
            while !over.load(SeqCst) {
                for n in 0..2_000 {
                    core::hint::black_box(n);
                }
                if now() > limit {
                    return false;
                }
            }
            true
        });
        hogs.push(hog.map_err(text)?);
    }
    let outcome = what.await;
    over.store(true, SeqCst);
    let mut in_time = true;
    for hog in hogs {
        in_time &= hog.join().map_err(text)?;
    }
    outcome?;
    ensure!(in_time, "it waited behind what is less urgent");
    Ok(())
}
