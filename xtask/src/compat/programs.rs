//! `compat/programs` against real servers, which are started for it and ended with it.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::run::{Stop, run};
use crate::setup;

/// As `compat/programs/src/operations.rs` names them.
const OPERATIONS: [&str; 7] = [
    "reqwest-http1",
    "reqwest-http2",
    "axum-sse",
    "axum-ws-tungstenite",
    "tower",
    "tokio-postgres",
    "redis",
];

const BUILD_LIMIT: Duration = Duration::from_secs(900);
const LIMIT: Duration = Duration::from_secs(90);
const START_LIMIT: Duration = Duration::from_secs(20);

/// Builds, starts the servers, prints the table.
pub(super) fn programs(root: &Path, only: &[String]) -> Result<(), String> {
    let stop = Stop::on_signals().map_err(|error| error.to_string())?;
    let package = root.join("compat/programs");
    let target = root.join("target/xtask/compat-programs");
    let mut build = setup::cargo(root);
    build
        .args(["build", "--release", "--manifest-path"])
        .arg(package.join("Cargo.toml"))
        .env("CARGO_TARGET_DIR", &target);
    let ending = run(&mut build, BUILD_LIMIT, None, &stop).map_err(|error| error.to_string())?;
    ending.success()?;
    let servers = Servers::start()?;
    println!("| | alone | beside busy coroutines | tokio |\n|---|---|---|---|");
    let mut failed = Vec::new();
    for name in OPERATIONS {
        if !only.is_empty() && !only.iter().any(|only| only == name) {
            continue;
        }
        let mut program = Command::new(target.join("release/compat-programs"));
        program
            .arg(name)
            .env("COMPAT_POSTGRES", &servers.postgres)
            .env("COMPAT_REDIS", &servers.redis);
        let ending = run(&mut program, LIMIT, None, &stop).map_err(|error| error.to_string())?;
        if let Err(reason) = ending.success() {
            println!("| {name} | {reason} | | |");
            failed.push(name);
        }
    }
    match failed.is_empty() {
        true => Ok(()),
        false => Err(format!("not working: {}", failed.join(", "))),
    }
}

/// Ended, and their files removed, when it is dropped.
struct Servers {
    children: Vec<Child>,
    folder: PathBuf,
    postgres: String,
    redis: String,
}

impl Servers {
    fn start() -> Result<Servers, String> {
        let folder = std::env::temp_dir().join(format!("upshift-compat-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut servers = Servers {
            children: Vec::new(),
            folder,
            postgres: String::new(),
            redis: String::new(),
        };
        let (redis, postgres) = (free_port()?, free_port()?);
        let mut command = Command::new("redis-server");
        command.args(["--port", &redis.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--dir"]).arg(&servers.folder);
        servers.begin(command, redis)?;
        servers.redis = format!("redis://127.0.0.1:{redis}/");
        let data = servers.folder.join("postgres");
        let mut make = as_postgres(&servers.folder, "initdb")?;
        make.args(["-A", "trust", "-U", "postgres", "-D"])
            .arg(&data);
        let made = make.stdout(Stdio::null()).status();
        if !made.is_ok_and(|status| status.success()) {
            return Err("initdb failed (apt-get install postgresql)".to_owned());
        }
        let mut command = as_postgres(&servers.folder, "postgres")?;
        command.args([
            "-h",
            "127.0.0.1",
            "-k",
            "",
            "-p",
            &postgres.to_string(),
            "-D",
        ]);
        command.arg(&data);
        servers.begin(command, postgres)?;
        servers.postgres = format!("host=127.0.0.1 port={postgres} user=postgres");
        Ok(servers)
    }

    fn begin(&mut self, mut command: Command, port: u16) -> Result<(), String> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        self.children
            .push(child.map_err(|error| format!("{name}: {error}"))?);
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port)).is_err() {
            if began.elapsed() > START_LIMIT {
                return Err(format!("{name} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for child in &mut self.children {
            // In order, so that its own children end too.
            let _ = Command::new("kill")
                .args(["-INT", &child.id().to_string()])
                .status();
            let _ = child.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

/// A program of postgres, which refuses to run as root.
fn as_postgres(folder: &Path, program: &str) -> Result<Command, String> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let path = versions
        .map(|version| version.path().join("bin").join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program} is missing (apt-get install postgresql)"))?;
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(path));
    }
    let owned = Command::new("chown").arg("postgres").arg(folder).status();
    owned.map_err(|error| format!("chown: {error}"))?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid=postgres", "--regid=postgres", "--clear-groups"])
        .arg(path)
        .current_dir("/");
    Ok(command)
}
