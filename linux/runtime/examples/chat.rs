//! A chat server that sends each client's lines to all other clients. Each client has a coroutine
//! that reads its lines and another that writes to it from a bounded queue. A client that does not
//! read is removed when its queue is full, so that it delays no other client and uses a bounded
//! amount of memory.
//!
//! Without arguments, three clients inside the program talk to each other and the program ends.
//! With an address, the program serves all clients that connect:
//!
//! ```text
//! cargo run -p upshift --example chat -- 127.0.0.1:7000
//! nc 127.0.0.1 7000
//! ```

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use upshift::Priority;
use upshift::io::{AsyncBufReadExt, BufReader, StreamExt};
use upshift::net::{TcpListener, TcpStream};
use upshift::sync::mpsc;

/// Maximum number of lines in a client's queue.
const QUEUE_CAPACITY: usize = 64;

type Line = Arc<[u8]>;

#[derive(Default)]
struct Room {
    members: Mutex<HashMap<SocketAddr, mpsc::Sender<Line>>>,
}

impl Room {
    fn enter(&self, peer: SocketAddr) -> mpsc::Receiver<Line> {
        let (sender, receiver) = mpsc::channel(QUEUE_CAPACITY);
        self.members().insert(peer, sender);
        receiver
    }

    fn leave(&self, peer: SocketAddr) {
        self.members().remove(&peer);
    }

    fn say(&self, from: SocketAddr, text: &str) {
        let line = Line::from(format!("{from}: {text}\n").into_bytes());
        self.members()
            .retain(|peer, queue| *peer == from || queue.try_send(line.clone()).is_ok());
    }

    fn members(&self) -> std::sync::MutexGuard<'_, HashMap<SocketAddr, mpsc::Sender<Line>>> {
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[upshift::main]
async fn main() -> io::Result<()> {
    if let Some(address) = std::env::args().nth(1) {
        return serve(TcpListener::bind(address)?).await;
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    upshift::spawn(serve(listener), Priority::Inherit).detach();

    let mut clients = Vec::new();
    for name in ["Ada", "Grace", "Edsger"] {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(format!("{name} is here\n")).await.0?;
        // All earlier clients receive this line first, so the order is fixed.
        for (_, client) in &mut clients {
            read_message(client).await?;
        }
        clients.push((name, BufReader::new(stream)));
    }
    let (name, last_client) = &mut clients[2];
    let farewell = format!("{name} says goodbye\n");
    last_client.get_mut().write_all(farewell).await.0?;
    for (name, client) in &mut clients[..2] {
        println!("{name} hears {}", read_message(client).await?);
    }
    Ok(())
}

/// Returns the text of the next line, without the sender's address.
async fn read_message(client: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    client.read_line(&mut line).await?;
    let (_, text) = line.trim_end().split_once(": ").unwrap_or_default();
    Ok(text.to_owned())
}

async fn serve(listener: TcpListener) -> io::Result<()> {
    let room = Arc::new(Room::default());
    loop {
        let (stream, peer) = listener.accept().await?;
        let queue = room.enter(peer);
        let conversation = converse(stream, peer, queue, room.clone());
        upshift::spawn(conversation, Priority::Inherit).detach();
    }
}

async fn converse(
    stream: TcpStream,
    peer: SocketAddr,
    mut queue: mpsc::Receiver<Line>,
    room: Arc<Room>,
) {
    let (reader, mut writer) = stream.into_split();
    let writer_handle = upshift::spawn(
        async move {
            // The loop ends when the room has dropped the sender. The lines are shared, not copied.
            while let Some(line) = queue.recv().await {
                if writer.write_all(line).await.0.is_err() {
                    return;
                }
            }
        },
        Priority::Inherit,
    );
    let mut lines = reader.lines();
    while let Some(Ok(line)) = lines.next().await {
        room.say(peer, &line);
    }
    room.leave(peer);
    let _ = writer_handle.await;
}
