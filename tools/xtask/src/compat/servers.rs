//! Starts and ends the database servers that the tested programs use.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of the start of a server, except for RabbitMQ.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Rules by which postgres and redis run before all ordinary programs, including the service's
/// vCPUs.
const RULES: &str =
    "[[assign]]\ncomm = \"postgres\"\nlevel = 1\n[[assign]]\ncomm = \"redis-server\"\nlevel = 1\n";
/// Time limit of RabbitMQ's start, which takes ten seconds on an idle machine.
const RABBITMQ_LIMIT: Duration = Duration::from_secs(120);

/// Running servers. On drop each server is ended, and the files are removed.
pub(super) struct Servers {
    /// Child processes, each with the signal that ends the server.
    children: Vec<(Child, &'static str)>,
    folder: PathBuf,
    /// Port of postgres.
    postgres: u16,
    /// URL of redis.
    pub(super) redis: String,
    /// Ports of RabbitMQ and of the daemon through which its nodes find each other.
    rabbitmq: Option<[u16; 2]>,
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
            rabbitmq: None,
        };
        let (redis, postgres) = (free_port()?, servers.postgres);
        let mut command = Command::new("redis-server");
        command.args(["--port", &redis.to_string(), "--bind", "127.0.0.1"]);
        command.args(["--save", "", "--dir"]).arg(&servers.folder);
        servers.begin(command, || is_listening(redis), START_LIMIT, "-INT")?;
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
        // -F: data is not synced to disk, since nothing is kept.
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
        servers.begin(command, || is_listening(postgres), START_LIMIT, "-INT")?;
        Ok(servers)
    }

    /// Starts a separate RabbitMQ node with a separate name daemon, reachable only from this
    /// machine.
    pub(super) fn start_rabbitmq(&mut self) -> Result<(), String> {
        let (port, name_daemon_port) = (free_port()?, free_port()?);
        let home = self.folder.join("rabbitmq");
        fs::create_dir_all(&home).map_err(|error| error.to_string())?;
        let program = Path::new("/usr/lib/rabbitmq/bin/rabbitmq-server");
        let mut command = as_user(&home, "rabbitmq", program)?;
        command
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &home)
            .env("ERL_EPMD_PORT", name_daemon_port.to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODENAME", "upshift@localhost")
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", port.to_string())
            .env("RABBITMQ_DIST_PORT", free_port()?.to_string())
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env(
                "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS",
                "-kernel inet_dist_use_interface {127,0,0,1}",
            );
        for (name, file) in [
            ("RABBITMQ_MNESIA_BASE", "data"),
            ("RABBITMQ_LOG_BASE", "log"),
            ("RABBITMQ_PID_FILE", "pid"),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", "plugins"),
            ("RABBITMQ_CONFIG_FILE", "none"),
            ("RABBITMQ_GENERATED_CONFIG_DIR", "config"),
        ] {
            command.env(name, home.join(file));
        }
        self.rabbitmq = Some([port, name_daemon_port]);
        self.begin(command, || is_listening(port), RABBITMQ_LIMIT, "-TERM")
    }

    pub(super) fn start_daemon(&mut self, upshift: &Path) -> Result<(), String> {
        let folder = self.daemon_folder();
        fs::create_dir_all(&folder).map_err(|error| error.to_string())?;
        let (socket, rules) = (folder.join("socket"), folder.join("daemon.toml"));
        fs::write(&rules, RULES).map_err(|error| error.to_string())?;
        let mut command = Command::new(upshift);
        command.arg("daemon").arg("--config").arg(&rules);
        command.arg("--socket").arg(&socket);
        self.begin(command, || socket.exists(), START_LIMIT, "-TERM")
    }

    /// Returns the daemon's folder. It is separate from the servers' folder, because that folder
    /// belongs to another user and the daemon refuses such a folder.
    fn daemon_folder(&self) -> PathBuf {
        self.folder.with_extension("daemon")
    }

    /// Returns RabbitMQ's URL; empty without RabbitMQ.
    pub(super) fn rabbitmq(&self) -> String {
        let url = |[port, _]: [u16; 2]| format!("amqp://guest:guest@127.0.0.1:{port}/%2f");
        self.rabbitmq.map(url).unwrap_or_default()
    }

    pub(super) fn postgres(&self) -> String {
        format!("host=127.0.0.1 port={} user=postgres", self.postgres)
    }

    pub(super) fn postgres_url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.postgres)
    }

    /// Starts a server and waits until `is_ready` holds; `signal` makes the server end at once.
    fn begin(
        &mut self,
        mut command: Command,
        is_ready: impl Fn() -> bool,
        limit: Duration,
        signal: &'static str,
    ) -> Result<(), String> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let name = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn();
        let child = child.map_err(|error| format!("{name}: {error}"))?;
        self.children.push((child, signal));
        let began = Instant::now();
        while !is_ready() {
            if began.elapsed() > limit {
                return Err(format!("{name} does not listen"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        for (child, signal) in &mut self.children {
            // The signal lets a server end its own children too.
            let _ = Command::new("kill")
                .args([*signal, &child.id().to_string()])
                .status();
            let _ = child.wait();
        }
        if let Some([_, name_daemon_port]) = self.rabbitmq {
            // The name daemon outlives its node.
            let mut end = Command::new("epmd");
            end.arg("-kill")
                .env("ERL_EPMD_PORT", name_daemon_port.to_string());
            let _ = end.stdout(Stdio::null()).stderr(Stdio::null()).status();
        }
        let _ = fs::remove_dir_all(&self.folder);
        let _ = fs::remove_dir_all(self.daemon_folder());
    }
}

fn is_listening(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

/// Returns a command for a program of postgres, which refuses to run as root.
fn as_postgres(folder: &Path, program: &str) -> Result<Command, String> {
    let versions = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten();
    let path = versions
        .map(|version| version.path().join("bin").join(program))
        .find(|path| path.is_file())
        .ok_or_else(|| format!("{program} is missing (apt-get install postgresql)"))?;
    as_user(folder, "postgres", &path)
}

/// Returns a command that runs as the current user, or as `user` in place of root; that user then
/// owns the folder.
fn as_user(folder: &Path, user: &str, program: &Path) -> Result<Command, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(Command::new(program));
    }
    let owned = Command::new("chown").arg(user).arg(folder).status();
    owned.map_err(|error| format!("chown: {error}"))?;
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", user, "--regid", user, "--clear-groups"])
        .arg(program)
        .current_dir("/");
    Ok(command)
}
