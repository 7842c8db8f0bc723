//! Executes the operator's commands, which arrive over a Unix socket, one per line. `help` lists
//! them.
//!
//! The socket has mode 0600, because access to the socket is permission to use all commands. A
//! separate thread serves the socket, so that commands are answered even if the runtime is busy.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::json;
use upshift::Level;

use crate::server::shared::{Control, Reloaded, Shared};
use upshift_units::socket_file::{self, SocketFile};

const HELP: &str = "\
status                connections, requests, whether the server drains
list                  the requests under way: number, level, age, method, path
reprio NUMBER LEVEL   give a request under way another level
priority RULE         put a rule before the others, e.g. `priority /api=8`; also for requests under way
reload                read configuration and certificate again
drain                 stop accepting, finish the requests under way, end
";

/// The socket for commands. Dropping it removes the file and ends the thread.
pub(crate) struct CommandSocket {
    file: SocketFile,
    is_closed: Arc<AtomicBool>,
}

impl CommandSocket {
    pub(crate) fn listen(path: &Path, shared: &Arc<Shared>) -> Result<CommandSocket, String> {
        let describe = |error: io::Error| {
            let hint = match error.kind() {
                io::ErrorKind::AddrInUse => "; choose another with --control",
                _ => "",
            };
            format!("control socket {}: {error}{hint}", path.display())
        };
        let (listener, file) = socket_file::listen(path, Some(0o600), 16).map_err(describe)?;
        let shared = Arc::downgrade(shared);
        let is_closed = Arc::new(AtomicBool::new(false));
        let is_over = is_closed.clone();
        std::thread::Builder::new()
            .name("control".into())
            .spawn(move || serve(&listener, &shared, &is_over))
            .map_err(describe)?;
        Ok(CommandSocket { file, is_closed })
    }
}

impl Drop for CommandSocket {
    fn drop(&mut self) {
        self.is_closed.store(true, Ordering::Relaxed);
        // The connection wakes the thread.
        let _ = UnixStream::connect(self.file.path());
    }
}

fn serve(listener: &UnixListener, shared: &Weak<Shared>, is_closed: &AtomicBool) {
    for stream in listener.incoming() {
        if is_closed.load(Ordering::Relaxed) {
            return;
        }
        let Some(shared) = shared.upgrade() else {
            return;
        };
        let Ok(stream) = stream else {
            // Descriptors may have run out. The client then waits.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        // Clients are served one at a time, so a silent client must not lock out other clients.
        let _ = stream.set_read_timeout(Some(Duration::from_secs(2)));
        let _ = stream.set_write_timeout(Some(Duration::from_secs(2)));
        let _ = serve_client(stream, &Control { shared });
    }
}

fn serve_client(mut stream: UnixStream, control: &Control) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?.take(1 << 16));
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        let answer = match execute(line.trim(), control) {
            Ok(answer) => answer,
            Err(error) => format!("error: {error}\n"),
        };
        stream.write_all(answer.as_bytes())?;
        line.clear();
    }
    Ok(())
}

fn execute(line: &str, control: &Control) -> Result<String, String> {
    let (command, rest) = line.split_once(' ').unwrap_or((line, ""));
    let ok = |done: Reloaded| format!("ok: {done}\n");
    if !rest.is_empty() && !matches!(command, "reprio" | "priority") {
        return Err(format!("`{command}` takes no arguments, but has `{rest}`"));
    }
    match command {
        "help" | "" => Ok(HELP.to_owned()),
        "status" => Ok(format!(
            "{}\n",
            json!({
                "connections": control.connections(),
                "answered": control.answered(),
                "under_way": control.requests().len(),
                "draining": control.shared.is_draining(),
            })
        )),
        "list" => Ok(control
            .requests()
            .iter()
            .map(|(number, level, age, method, path)| {
                let line = json!({
                    "number": number, "level": level.get(), "ms": age, "method": method, "path": path,
                });
                format!("{line}\n")
            })
            .collect()),
        "reprio" => {
            let (number, level) = rest.split_once(' ').ok_or("write: reprio NUMBER LEVEL")?;
            let number = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
            let level = level.trim();
            let level = level
                .parse()
                .ok()
                .and_then(|n| Level::new(n).ok())
                .ok_or_else(|| format!("`{level}` is not a level: use 0 to 63"))?;
            if control.reprio(number, level) {
                Ok(format!("ok: request {number} is at level {level}\n"))
            } else {
                Err(format!("no request {number} is under way"))
            }
        }
        "priority" => control.add_rule(rest.parse()?).map(ok),
        "reload" => control.reload().map(ok),
        "drain" => {
            control.drain();
            Ok("ok: draining\n".to_owned())
        }
        other => Err(format!("`{other}` is no command; `help` lists them")),
    }
}

/// Sends a command to a running server and returns its answer.
///
/// # Errors
/// Fails if no server listens on the socket, or if the server sends nothing for ten seconds.
pub fn ask(socket: &Path, command: &str) -> io::Result<String> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(Duration::from_secs(10)))?;
    writeln!(stream, "{command}")?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}
