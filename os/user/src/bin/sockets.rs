//! The tests of sockets, over the loopback, which needs no card; with the argument `serve` an
//! echo server at port 7, of connections and of datagrams, for a peer outside of the machine.

#![no_std]
#![no_main]

extern crate alloc;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::sync::atomic::AtomicBool;
use core::sync::atomic::Ordering::SeqCst;

use os_user::coroutine::{self, current, reprio};
use os_user::net::{
    SELF, accept, accept_async, connect, connect_async, datagram, datagrams, listen, receive_from,
    receive_from_async, send_to, send_to_async,
};
use os_user::testing::{Outcome, run_all, text};
use os_user::{
    Bounds, Error, ensure, now, read, sleep, spawn_within, sys, tests, thread, ticks_per_second,
    write,
};

os_user::coroutine_entry!(main);

tests! {
    bytes_come_back_in_order,
    connections_are_served_at_once,
    connection_to_nobody_is_refused,
    end_is_read_after_what_was_written,
    writing_to_what_is_closed_is_an_error,
    full_connection_makes_the_writer_wait,
    wrong_sockets_are_errors,
    waiting_for_a_connection_can_be_cancelled,
    sockets_are_limited_and_come_back,
    datagrams_come_with_where_they_come_from,
    datagrams_are_whole_or_lost,
    wrong_datagrams_are_errors,
    port_is_for_one_listener,
    leaked_sockets_are_closed,
    exit_with_calls_in_flight_leaves_nothing_behind,
    sockets_of_others_cannot_be_closed,
    network_is_as_urgent_as_what_waits_for_it,
    answer_of_a_listener_is_as_urgent_as_the_call,
}

async fn main() -> isize {
    let task = match os_user::argument() {
        b"serve" => serve().await,
        b"leak" => leak(),
        b"flight" => leave_calls_in_flight().await,
        b"closer" => close_all(),
        _ => {
            reprio(current(), 5);
            return run_all(TESTS).await;
        }
    };
    isize::from(task.is_err())
}

/// Serves connections until one says `quit`.
async fn serve() -> Outcome {
    let listener = listen(7, 4).map_err(text)?;
    let port = datagrams(7).map_err(text)?;
    coroutine::spawn(echo_datagrams(port), None).map_err(text)?;
    loop {
        let (connection, _) = accept_async(listener, current()).await;
        let connection = connection.map_err(text)? as usize;
        let one = async move {
            if echo(connection).await == Ok(b"quit".into()) {
                os_user::exit(0);
            }
        };
        coroutine::spawn(one, None).map_err(text)?;
    }
}

/// Sends back what comes, until the end; returns the last that came.
async fn echo(connection: usize) -> Result<Vec<u8>, Error> {
    let mut last = Vec::new();
    loop {
        let (count, buffer) = os_user::read!(connection, Vec::from([0; 256]), current()).await;
        let count = count?;
        if count == 0 {
            sys::close(connection)?;
            return Ok(last);
        }
        last = Vec::from(&buffer[..count]);
        let (count, _) = os_user::write!(connection, last.clone(), current()).await;
        count?;
    }
}

/// Sends datagrams back, for ever.
async fn echo_datagrams(port: usize) -> Result<(), Error> {
    loop {
        let buffer = Vec::from([0; datagram::HEADER + datagram::MOST]);
        let (count, buffer) = receive_from_async(port, buffer, current()).await;
        if let Some((address, from, bytes)) = datagram::parse(&buffer[..count?]) {
            let (sent, _) = send_to_async(port, bytes.into(), (address, from), current()).await;
            sent?;
        }
    }
}

/// A byte of a stream, by its place.
fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

/// Reads all until the end, and checks that it is the stream.
async fn check(connection: usize) -> Result<usize, String> {
    let mut done = 0;
    loop {
        let (count, buffer) = os_user::read!(connection, Vec::from([0; 200]), current()).await;
        let count = count.map_err(text)?;
        if count == 0 {
            return Ok(done);
        }
        for found in &buffer[..count] {
            ensure!(*found == byte(done), "byte {done} is {found}");
            done += 1;
        }
    }
}

/// Sends the stream to a server, ends writing, and checks what comes back.
async fn send_and_check(port: u16, total: usize) -> Outcome {
    let socket = sys::socket().map_err(text)? as usize;
    let (answer, _) = connect_async(socket, SELF, port, current()).await;
    answer.map_err(text)?;
    let writer = async move {
        let all: Vec<u8> = (0..total).map(byte).collect();
        let (count, _) = os_user::write!(socket, all, current()).await;
        sys::shutdown(socket)?;
        count
    };
    let writer = coroutine::spawn(writer, None).map_err(text)?;
    let seen = check(socket).await?;
    let count = writer.await;
    ensure!(count == Some(Ok(total)), "{count:?} written");
    ensure!(seen == total, "{seen} bytes came back");
    sys::close(socket).map_err(text)?;
    Ok(())
}

/// A server that serves so many connections.
fn server(port: u16, count: usize) -> Result<coroutine::JoinHandle<Outcome>, String> {
    // What finds no room in the backlog is refused.
    let listener = listen(port, count).map_err(text)?;
    let serve = async move {
        let mut all = Vec::new();
        for _ in 0..count {
            let (connection, _) = accept_async(listener, current()).await;
            let connection = connection.map_err(text)? as usize;
            all.push(coroutine::spawn(echo(connection), None).map_err(text)?);
        }
        for one in all {
            ensure!(matches!(one.await, Some(Ok(_))), "a connection has failed");
        }
        sys::close(listener).map_err(text)?;
        Ok(())
    };
    coroutine::spawn(serve, None).map_err(text)
}

fn ended(outcome: Option<Outcome>) -> Outcome {
    outcome.unwrap_or_else(|| Err("it was cancelled".into()))
}

async fn bytes_come_back_in_order() -> Outcome {
    let server = server(1000, 1)?;
    send_and_check(1000, 20_000).await?;
    ended(server.await)
}

async fn connections_are_served_at_once() -> Outcome {
    let server = server(1001, 6)?;
    let mut clients = Vec::new();
    for n in 0..6 {
        let client = send_and_check(1001, 1_000 + n * 700);
        clients.push(coroutine::spawn(client, None).map_err(text)?);
    }
    for client in clients {
        ended(client.await)?;
    }
    ended(server.await)
}

async fn connection_to_nobody_is_refused() -> Outcome {
    let answer = connect(SELF, 1002);
    ensure!(answer == Err(Error::Refused), "{answer:?}");
    Ok(())
}

/// In the synchronous form, from two threads.
async fn end_is_read_after_what_was_written() -> Outcome {
    let listener = listen(1003, 1).map_err(text)?;
    let writer = thread::spawn(move || {
        let connection = accept(listener)?;
        write(connection, b"the last words")?;
        sys::close(connection)
    });
    let writer = writer.map_err(text)?;
    let connection = connect(SELF, 1003).map_err(text)?;
    let (mut all, mut part) = (Vec::new(), [0; 4]);
    loop {
        match read(connection, &mut part).map_err(text)? {
            0 => break,
            count => all.extend_from_slice(&part[..count]),
        }
    }
    ensure!(all == b"the last words", "{all:?}");
    writer.join().map_err(text)?.map_err(text)?;
    sys::close(connection).map_err(text)?;
    sys::close(listener).map_err(text)?;
    Ok(())
}

async fn writing_to_what_is_closed_is_an_error() -> Outcome {
    let listener = listen(1004, 1).map_err(text)?;
    let connection = connect(SELF, 1004).map_err(text)?;
    let other = accept(listener).map_err(text)?;
    sys::shutdown(connection).map_err(text)?;
    let answer = write(connection, b"more");
    ensure!(answer == Err(Error::BrokenPipe), "{answer:?}");
    let answer = read(other, &mut [0]);
    ensure!(answer == Ok(0), "{answer:?}");
    for file in [connection, other, listener] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

/// Nobody reads: both buffers are full at last, and everything comes when somebody does.
async fn full_connection_makes_the_writer_wait() -> Outcome {
    const TOTAL: usize = 30_000;
    let listener = listen(1005, 1).map_err(text)?;
    let connection = connect(SELF, 1005).map_err(text)?;
    let other = accept(listener).map_err(text)?;
    let over = Arc::new(AtomicBool::new(false));
    let writer = {
        let over = over.clone();
        async move {
            let all: Vec<u8> = (0..TOTAL).map(byte).collect();
            let (count, _) = os_user::write!(connection, all, current()).await;
            over.store(true, SeqCst);
            let _ = sys::close(connection);
            count
        }
    };
    let writer = coroutine::spawn(writer, None).map_err(text)?;
    sleep(20_000).await;
    ensure!(!over.load(SeqCst), "there is room for everything");
    let seen = check(other).await?;
    ensure!(seen == TOTAL, "{seen} bytes");
    let count = writer.await;
    ensure!(count == Some(Ok(TOTAL)), "{count:?}");
    sys::close(other).map_err(text)?;
    sys::close(listener).map_err(text)?;
    Ok(())
}

async fn wrong_sockets_are_errors() -> Outcome {
    let socket = sys::socket().map_err(text)? as usize;
    let pipe = os_user::pipe().map_err(text)?;
    let answers = [
        (sys::listen(socket, 4), Error::BadArgument),
        (sys::bind(socket, 70_000), Error::BadArgument),
        (sys::accept(socket), Error::BadFile),
        (sys::accept(pipe.reader), Error::BadFile),
        (sys::shutdown(socket), Error::BadFile),
        (sys::bind(pipe.reader, 9), Error::BadFile),
        (sys::connect(socket, 0, 0), Error::BadArgument),
        (sys::connect(usize::MAX, 0, 9), Error::BadFile),
        (sys::connect(socket, usize::MAX, 9), Error::BadArgument),
        (read(socket, &mut [0]).map(|_| 0), Error::BadFile),
    ];
    for (n, (answer, right)) in answers.into_iter().enumerate() {
        ensure!(answer == Err(right), "call {n}: {answer:?}");
    }
    for file in [socket, pipe.reader, pipe.writer] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

async fn waiting_for_a_connection_can_be_cancelled() -> Outcome {
    let listener = listen(1006, 2).map_err(text)?;
    let call = accept_async(listener, current());
    sleep(1_000).await;
    call.cancel();
    let (answer, _) = call.await;
    ensure!(answer == Err(Error::Cancelled), "{answer:?}");
    drop(accept_async(listener, current()));
    sys::close(listener).map_err(text)?;
    Ok(())
}

async fn sockets_are_limited_and_come_back() -> Outcome {
    for round in 0..2 {
        let mut listeners = Vec::new();
        let error = loop {
            match listen(2000 + listeners.len() as u16, 16) {
                Ok(listener) => listeners.push(listener),
                Err(error) => break error,
            }
        };
        let count = listeners.len();
        for listener in listeners {
            sys::close(listener).map_err(text)?;
        }
        ensure!(
            error == Error::TooMany && (1..=64).contains(&count),
            "round {round}: {count} listeners, then {error:?}"
        );
    }
    Ok(())
}

async fn datagrams_come_with_where_they_come_from() -> Outcome {
    let (one, other) = (datagrams(3000), datagrams(0));
    let (one, other) = (one.map_err(text)?, other.map_err(text)?);
    let mut buffer = [0; 40];
    // Nothing is there before it is sent: it waits.
    let waiting = receive_from_async(one, Vec::from([0; 40]), current());
    let sent = send_to(other, b"there", (SELF, 3000)).map_err(text)?;
    ensure!(sent == 5, "{sent} sent");
    let (count, bytes) = waiting.await;
    let count = count.map_err(text)?;
    let parsed = datagram::parse(&bytes[..count]);
    let Some((SELF, port, b"there")) = parsed else {
        return Err(alloc::format!("{parsed:?}"));
    };
    send_to(one, b"", (SELF, port)).map_err(text)?;
    let count = receive_from(other, &mut buffer).map_err(text)?;
    let parsed = datagram::parse(&buffer[..count]);
    ensure!(parsed == Some((SELF, 3000, &b""[..])), "{parsed:?}");
    // What there is no room for is cut off.
    send_to(one, b"longer", (SELF, port)).map_err(text)?;
    let count = receive_from(other, &mut buffer[..datagram::HEADER + 3]).map_err(text)?;
    let parsed = datagram::parse(&buffer[..count]);
    ensure!(parsed == Some((SELF, 3000, &b"lon"[..])), "{parsed:?}");
    for file in [one, other] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

/// More are sent than there is room for: some come, in order, and no part of one.
async fn datagrams_are_whole_or_lost() -> Outcome {
    let (one, other) = (datagrams(3001), datagrams(0));
    let (one, other) = (one.map_err(text)?, other.map_err(text)?);
    for n in 0..100u8 {
        let bytes = Vec::from([n; 500]);
        let (sent, _) = send_to_async(other, bytes, (SELF, 3001), current()).await;
        ensure!(sent == Ok(500), "{n}: {sent:?}");
    }
    sleep(20_000).await;
    let (mut seen, mut last) = (0, None);
    loop {
        let call = receive_from_async(one, Vec::from([0; 600]), current());
        if seen > 0 {
            // Nothing wakes it if there is none.
            sleep(2_000).await;
            call.cancel();
        }
        let (count, bytes) = call.await;
        let Ok(count) = count else {
            break;
        };
        let n = bytes[datagram::HEADER];
        ensure!(count == datagram::HEADER + 500, "{count} bytes");
        ensure!(
            bytes[datagram::HEADER..count].iter().all(|byte| *byte == n) && last < Some(n),
            "{n} after {last:?}"
        );
        last = Some(n);
        seen += 1;
    }
    ensure!((4..100).contains(&seen), "{seen} datagrams");
    for file in [one, other] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

async fn wrong_datagrams_are_errors() -> Outcome {
    let socket = datagrams(3002).map_err(text)?;
    let stream = sys::socket().map_err(text)? as usize;
    let long = Vec::from([0; datagram::MOST + 1]);
    let mut short = [0; datagram::HEADER - 1];
    let answers = [
        (datagrams(3002), Error::InUse),
        (send_to(socket, &long, (SELF, 3003)), Error::BadArgument),
        (send_to(socket, b"x", (SELF, 0)), Error::BadArgument),
        (send_to(socket, b"x", ([0; 4], 9)), Error::BadArgument),
        (send_to(stream, b"x", (SELF, 9)), Error::BadFile),
        (receive_from(socket, &mut short), Error::BadArgument),
        (receive_from(stream, &mut [0; 9]), Error::BadFile),
        (read(socket, &mut [0]), Error::BadFile),
        (write(socket, b"x").map(|()| 0), Error::BadFile),
        (sys::listen(socket, 1).map(|_| 0), Error::BadFile),
        (sys::connect(socket, 0, 9).map(|_| 0), Error::BadFile),
    ];
    for (n, (answer, right)) in answers.into_iter().enumerate() {
        ensure!(answer == Err(right), "call {n}: {answer:?}");
    }
    for file in [socket, stream] {
        sys::close(file).map_err(text)?;
    }
    let again = datagrams(3002).map_err(text)?;
    sys::close(again).map_err(text)?;
    Ok(())
}

async fn port_is_for_one_listener() -> Outcome {
    let listener = listen(3004, 2).map_err(text)?;
    let answer = listen(3004, 1);
    ensure!(answer == Err(Error::InUse), "{answer:?}");
    sys::close(listener).map_err(text)?;
    let again = listen(3004, 1).map_err(text)?;
    sys::close(again).map_err(text)?;
    Ok(())
}

/// Bytes go to and fro at level 10, beside threads that compute on all harts at level 25.
/// Runs this program with a task, to its end, in the same share: what it leaves counts there.
async fn run_task(task: &[u8], files: &[usize]) -> Outcome {
    let bounds = Bounds {
        level: 20,
        ceiling: 20,
        halvings: 0,
    };
    let child = spawn_within("sockets", task, files, bounds).map_err(text)?;
    let (status, _) = os_user::asynchronous::wait(child, current()).await;
    ensure!(status == Ok(0), "status {status:?}");
    Ok(())
}

/// As many datagram sockets as there are, closed again.
fn count_sockets() -> Result<usize, String> {
    let mut sockets = Vec::new();
    while let Ok(socket) = datagrams(0) {
        sockets.push(socket);
    }
    let count = sockets.len();
    for socket in sockets {
        sys::close(socket).map_err(text)?;
    }
    Ok(count)
}

/// Until there are as many as before: closed connections linger for a moment.
async fn sockets_come_back(before: usize) -> Outcome {
    for _ in 0..70 {
        if count_sockets()? == before {
            return Ok(());
        }
        sleep(100_000).await;
    }
    let now = count_sockets()?;
    Err(alloc::format!("{now} sockets instead of {before}"))
}

/// Sockets of every kind and in every state, none of which it closes.
fn leak() -> Outcome {
    for _ in 0..4 {
        // To the parent's listener.
        let connection = connect(SELF, 1020).map_err(text)?;
        write(connection, b"left").map_err(text)?;
    }
    let listener = listen(1021, 4).map_err(text)?;
    for n in 0..3 {
        let connection = connect(SELF, 1021).map_err(text)?;
        if n > 0 {
            accept(listener).map_err(text)?;
        }
        if n > 1 {
            sys::shutdown(connection).map_err(text)?;
        }
    }
    for _ in 0..10 {
        sys::socket().map_err(text)?;
        let port = datagrams(0).map_err(text)?;
        send_to(port, b"nobody", (SELF, 1022)).map_err(text)?;
    }
    Ok(())
}

/// What a program has left open ends as if it had closed it: whoever it was connected to reads
/// what was written, then the end; ports and places are free again.
async fn leaked_sockets_are_closed() -> Outcome {
    let before = count_sockets()?;
    let listener = listen(1020, 8).map_err(text)?;
    run_task(b"leak", &[]).await?;
    for n in 0..4 {
        let connection = accept(listener).map_err(text)?;
        let mut bytes = [0; 16];
        let count = read!(connection, &mut bytes).map_err(text)?;
        ensure!(&bytes[..count] == b"left", "connection {n}: {count} bytes");
        let end = read!(connection, &mut bytes);
        ensure!(end == Ok(0), "connection {n}: {end:?}");
        sys::close(connection).map_err(text)?;
    }
    sys::close(listener).map_err(text)?;
    let again = listen(1021, 4).map_err(text)?;
    sys::close(again).map_err(text)?;
    sockets_come_back(before).await
}

/// Ends while calls of every kind wait.
async fn leave_calls_in_flight() -> Outcome {
    let listener = listen(1023, 2).map_err(text)?;
    let one = connect(SELF, 1023).map_err(text)?;
    let other = accept(listener).map_err(text)?;
    let port = datagrams(0).map_err(text)?;
    let third = sys::socket().map_err(text)? as usize;
    let calls = (
        accept_async(listener, current()),
        // Nobody has this address.
        connect_async(third, [10, 9, 8, 7], 1, current()),
        receive_from_async(port, Vec::from([0; 64]), current()),
        os_user::read!(other, Vec::from([0; 64]), current()),
        // More than there is room for on both sides.
        os_user::write!(one, Vec::from([1; 20_000]), current()),
    );
    sleep(2_000).await;
    core::mem::forget(calls);
    Ok(())
}

async fn exit_with_calls_in_flight_leaves_nothing_behind() -> Outcome {
    let before = count_sockets()?;
    for _ in 0..3 {
        run_task(b"flight", &[]).await?;
    }
    sockets_come_back(before).await
}

/// Closes what it has been given, and what it has not.
fn close_all() -> Outcome {
    write(0, b"mine").map_err(text)?;
    for file in 0..100 {
        let right = file < 2;
        let closed = sys::close(file);
        ensure!(closed.is_ok() == right, "{file}: {closed:?}");
    }
    for file in [0, 5, 99] {
        ensure!(sys::shutdown(file) == Err(Error::BadFile), "ended {file}");
    }
    Ok(())
}

/// A descriptor is its process's: what another closes, its parent and the peer still have.
async fn sockets_of_others_cannot_be_closed() -> Outcome {
    let listener = listen(1024, 1).map_err(text)?;
    let one = connect(SELF, 1024).map_err(text)?;
    let other = accept(listener).map_err(text)?;
    run_task(b"closer", &[one, listener]).await?;
    write(one, b", and mine").map_err(text)?;
    let mut bytes = [0; 32];
    let mut count = 0;
    while count < 14 {
        count += read!(other, &mut bytes[count..]).map_err(text)?;
    }
    ensure!(&bytes[..count] == b"mine, and mine", "{count} bytes");
    for file in [one, other, listener] {
        sys::close(file).map_err(text)?;
    }
    Ok(())
}

async fn network_is_as_urgent_as_what_waits_for_it() -> Outcome {
    beside_hogs(async {
        let server = server(1007, 1)?;
        send_and_check(1007, 3_000).await?;
        ended(server.await)
    })
    .await
}

/// Nobody waits at the listener: what it answers is as urgent as what has asked, and does not
/// come only when that is sent once more, a second later.
async fn answer_of_a_listener_is_as_urgent_as_the_call() -> Outcome {
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
async fn beside_hogs(what: impl Future<Output = Outcome>) -> Outcome {
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
