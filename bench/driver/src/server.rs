//! One server process: started with its CPU set before it runs, announced by its first line, ended by SIGTERM.

use std::io::Error;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::{Duration, Instant};

use upshift_load::child::{Child, listening, pin};

use crate::peers::Program;

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);

/// A running server; dropping it ends it.
pub(crate) struct Server {
    child: Child,
    /// Where it listens, in the order of its `--listen` options.
    pub(crate) addresses: Vec<SocketAddr>,
}

impl Server {
    /// Starts the server on `cpu` (any if `None`), listening at each of `listen`.
    pub(crate) fn start(
        program: &Program,
        listen: &[String],
        cpu: Option<usize>,
    ) -> Result<Server, String> {
        let mut command = Command::new(&program.file);
        command
            .args(&program.args)
            .envs(program.env.iter().cloned());
        for address in listen {
            command.args(["--listen", address]);
        }
        if let Some(user) = program.user {
            command.uid(user).gid(user);
            without_rights(&mut command);
        }
        if let Some(cpu) = cpu {
            pin(&mut command, cpu);
        }
        let child = Child::start(&mut command)
            .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
        let mut server = Server {
            child,
            addresses: Vec::new(),
        };
        let deadline = Instant::now() + START;
        while server.addresses.len() < listen.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = server.child.line(left).map_err(|_| {
                format!("{} did not say `listening on ADDR`", program.file.display())
            })?;
            server.addresses.extend(listening(&line));
        }
        Ok(server)
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }
}

/// The program of `command` may not use SCHED_FIFO, whatever the limits of the driver are.
fn without_rights(command: &mut Command) {
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the closure runs between fork and exec; it makes one async-signal-safe system call with a pointer to its own memory.
    unsafe {
        command.pre_exec(
            move || match libc::setrlimit(libc::RLIMIT_RTPRIO, &raw const none) {
                0 => Ok(()),
                _ => Err(Error::last_os_error()),
            },
        );
    }
}
