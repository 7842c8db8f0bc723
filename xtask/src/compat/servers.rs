//! The databases that the programs need, started for them and ended with them.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const START_LIMIT: Duration = Duration::from_secs(20);

/// Ended, and their files removed, when it is dropped.
pub(super) struct Servers {
    children: Vec<Child>,
    folder: PathBuf,
    postgres: u16,
    /// A URL.
    pub(super) redis: String,
}

impl Servers {
    pub(super) fn start() -> Result<Servers, String> {
        let folder = std::env::temp_dir().join(format!("upshift-compat-{}", std::process::id()));
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let mut servers = Servers {
            children: Vec::new(),
            folder,
            postgres: free_port()?,
            redis: String::new(),
        };
        let (redis, postgres) = (free_port()?, servers.postgres);
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
        // -F: nothing is kept.
        command.args([
            "-F",
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
        Ok(servers)
    }

    /// As libpq takes it.
    pub(super) fn postgres(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.postgres)
    }

    pub(super) fn postgres_url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.postgres)
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
