//! One server process: started with its CPU set before it runs, announced by its first line, ended by SIGTERM.

use std::io::{BufRead, BufReader, Error};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::peers::Program;

/// How long a server may take to listen.
const START: Duration = Duration::from_secs(10);
/// How long it may take to end after SIGTERM before it is killed.
const END: Duration = Duration::from_secs(3);

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
            .envs(program.env.iter().cloned())
            .stdout(Stdio::piped());
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
        let mut child = command
            .spawn()
            .map_err(|e| format!("cannot start {}: {e}", program.file.display()))?;
        let stdout = child.stdout.take();
        let mut server = Server {
            child,
            addresses: Vec::new(),
        };
        let (lines, told) = mpsc::channel();
        // Reads to the end, so that a server that says more never blocks on a full pipe.
        std::thread::spawn(move || {
            let lines_of = stdout
                .into_iter()
                .flat_map(|out| BufReader::new(out).lines());
            for line in lines_of.map_while(Result::ok) {
                let _ = lines.send(line);
            }
        });
        let deadline = Instant::now() + START;
        while server.addresses.len() < listen.len() {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = told.recv_timeout(left).map_err(|_| {
                format!("{} did not say `listening on ADDR`", program.file.display())
            })?;
            // `upshift serve` says `serving FOLDER on http://ADDR`.
            let address: Option<SocketAddr> = line
                .strip_prefix("listening on ")
                .or_else(|| Some(line.split_once(" on http://")?.1))
                .and_then(|rest| rest.split_whitespace().next())
                .and_then(|word| word.parse().ok());
            server.addresses.extend(address);
        }
        Ok(server)
    }

    /// The process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SAFETY: kill() takes no pointers; the child has not been waited for, so its id is still its own.
        unsafe { libc::kill(self.child.id() as libc::pid_t, libc::SIGTERM) };
        let deadline = Instant::now() + END;
        while Instant::now() < deadline {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
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

/// Makes the program of `command` start on `cpu` alone.
pub(crate) fn pin(command: &mut Command, cpu: usize) {
    // SAFETY: the closure runs between fork and exec; it makes one async-signal-safe system call and touches only its
    // own stack.
    unsafe {
        command.pre_exec(move || {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            libc::CPU_SET(cpu, &mut set);
            match libc::sched_setaffinity(0, size_of_val(&set), &raw const set) {
                0 => Ok(()),
                _ => Err(Error::last_os_error()),
            }
        });
    }
}
