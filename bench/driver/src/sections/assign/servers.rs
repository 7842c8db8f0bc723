//! Starts nginx, redis and postgres, each with its own files in a temporary folder.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use upshift_load::child;

use super::server_kind::ServerKind;

/// Time within which a started server must answer.
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// A running server, which is ended on drop.
pub(super) struct Server {
    pub(super) kind: ServerKind,
    pub(super) address: SocketAddr,
    child: Child,
    /// Process ids right after the start.
    initial_processes: Vec<u32>,
    folder: PathBuf,
}

impl Server {
    /// Starts a server, with `prefix` in front of its command.
    pub(super) fn start(kind: ServerKind, prefix: &[&str]) -> Result<Server, String> {
        let folder = std::env::temp_dir().join(format!(
            "upshift-bench-{}-{}",
            kind.name(),
            std::process::id()
        ));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
        let port = TcpListener::bind("127.0.0.1:0")
            .and_then(|it| it.local_addr())
            .map_err(|e| e.to_string())?
            .port();
        let program = kind.program().ok_or("the server is not installed")?;
        let command_words = match kind {
            ServerKind::Nginx => nginx(&program, &folder, port)?,
            ServerKind::Redis => redis(&program, &folder, port),
            ServerKind::Postgres => postgres(&program, &folder, port)?,
        };
        let mut words = prefix
            .iter()
            .map(|it| (*it).to_owned())
            .chain(command_words);
        let mut command = Command::new(words.next().unwrap_or_default());
        command
            .args(words)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = command
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", kind.name()))?;
        let mut server = Server {
            kind,
            address: SocketAddr::from(([127, 0, 0, 1], port)),
            child,
            initial_processes: Vec::new(),
            folder,
        };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(server.address).is_err() || !server.is_up() {
            if Instant::now() > deadline || !matches!(server.child.try_wait(), Ok(None)) {
                return Err(format!("{} has ended or does not answer", kind.name()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        server.initial_processes = server.processes();
        Ok(server)
    }

    /// Whether the server answers; a listening server may not be ready yet.
    fn is_up(&self) -> bool {
        super::client::Connection::open(self.kind, self.address).is_ok()
    }

    /// Returns the server's process and all its descendants.
    pub(super) fn processes(&self) -> Vec<u32> {
        let mut known = vec![self.child.id()];
        let parents = parents();
        loop {
            let more: Vec<u32> = parents
                .iter()
                .filter(|(pid, parent)| known.contains(parent) && !known.contains(pid))
                .map(|&(pid, _)| pid)
                .collect();
            if more.is_empty() {
                return known;
            }
            known.extend(more);
        }
    }

    /// Returns the processes that answer requests, once the connections are established.
    pub(super) fn serving_processes(&self) -> Vec<u32> {
        let all = self.processes();
        match self.kind {
            ServerKind::Redis => all,
            ServerKind::Nginx => all.into_iter().skip(1).collect(),
            ServerKind::Postgres => all
                .into_iter()
                .filter(|pid| !self.initial_processes.contains(pid))
                .collect(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        child::end(&mut self.child);
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns the id of each process, with the id of its parent.
fn parents() -> Vec<(u32, u32)> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name may contain any character, and ends at the last parenthesis.
        let after = stat.rsplit_once(')')?.1;
        Some((pid, after.split_ascii_whitespace().nth(1)?.parse().ok()?))
    })
    .collect()
}

fn nginx(program: &Path, folder: &Path, port: u16) -> Result<Vec<String>, String> {
    let work = folder.display();
    let file = folder.join("nginx.conf");
    let text = format!(
        "daemon off; worker_processes 2; pid {work}/pid; error_log {work}/error.log;\n\
         events {{ worker_connections 64; }}\n\
         http {{\n  access_log off; keepalive_requests 1000000000;\n\
         client_body_temp_path {work}/1; proxy_temp_path {work}/2; fastcgi_temp_path {work}/3;\n\
         uwsgi_temp_path {work}/4; scgi_temp_path {work}/5;\n\
         server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"hello\"; }} }}\n}}\n"
    );
    std::fs::write(&file, text).map_err(|e| e.to_string())?;
    let words = [
        program.display().to_string(),
        "-c".into(),
        file.display().to_string(),
    ];
    Ok(words
        .into_iter()
        .chain(["-e".into(), format!("{work}/error.log")])
        .collect())
}

fn redis(program: &Path, folder: &Path, port: u16) -> Vec<String> {
    let port = port.to_string();
    let folder = folder.display().to_string();
    let program = program.display().to_string();
    let args = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--dir",
        &folder,
    ];
    std::iter::once(program.as_str())
        .chain(args)
        .map(str::to_owned)
        .collect()
}

/// Prepares postgres, which refuses to run as root, and returns its command.
fn postgres(program: &Path, folder: &Path, port: u16) -> Result<Vec<String>, String> {
    let (user, group) = id_of("postgres").ok_or("there is no user `postgres`")?;
    std::os::unix::fs::chown(folder, Some(user), Some(group)).map_err(|e| e.to_string())?;
    let data = folder.join("data").display().to_string();
    let initdb = program.with_file_name("initdb");
    let output = Command::new(&initdb)
        .args(["--auth=trust", "--no-sync", "--locale=C", "-D", &data])
        .current_dir("/")
        .uid(user)
        .gid(group)
        .output()
        .map_err(|e| format!("cannot start {}: {e}", initdb.display()))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    let settings = [
        format!("--port={port}"),
        "--listen_addresses=127.0.0.1".into(),
        "--unix_socket_directories=".into(),
        "--fsync=off".into(),
        "--autovacuum=off".into(),
    ];
    let (user, group) = (user.to_string(), group.to_string());
    let words = [
        "setpriv",
        "--reuid",
        &user,
        "--regid",
        &group,
        "--clear-groups",
    ];
    let words = words.into_iter().map(str::to_owned);
    let server = [program.display().to_string(), "-D".into(), data];
    Ok(words.chain(server).chain(settings).collect())
}

fn id_of(name: &str) -> Option<(u32, u32)> {
    let text = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut fields = text
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?
        .split(':')
        .skip(1);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}
