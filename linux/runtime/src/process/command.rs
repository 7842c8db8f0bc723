//! A builder that holds the options of a child process and starts the process.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::Child;
use crate::blocking;

/// A program to start, with its arguments, environment and standard streams: the asynchronous
/// counterpart of [`std::process::Command`].
///
/// ```
/// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
/// use upshift::io::{AsyncReadExt, AsyncWriteExt};
/// use upshift::process::{Command, Stdio};
///
/// let mut child = Command::new("cat")
///     .stdin(Stdio::piped())
///     .stdout(Stdio::piped())
///     .kill_on_drop(true)
///     .spawn()
///     .await?;
/// let mut stdin = child.stdin.take().expect("stdin is piped");
/// stdin.write_all(b"through the cat").await?;
/// drop(stdin);
/// let mut text = String::new();
/// child.stdout.take().expect("stdout is piped").read_to_string(&mut text).await?;
/// assert_eq!(text, "through the cat");
/// assert!(child.wait().await?.success());
/// # std::io::Result::Ok(()) }).unwrap();
/// ```
pub struct Command {
    /// Shared with the thread that starts the program.
    inner: Arc<Mutex<std::process::Command>>,
    kill_on_drop: bool,
}

impl Command {
    /// Creates a command for a program, which is given by its path, or by a name that is searched
    /// for in `PATH`.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    ///
    /// assert!(Command::new("true").status().await?.success());
    /// let missing = Command::new("no-such-program").status().await;
    /// assert_eq!(missing.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn new(program: impl AsRef<OsStr>) -> Command {
        Command::from(std::process::Command::new(program))
    }

    fn lock(&self) -> MutexGuard<'_, std::process::Command> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `change` with the underlying [`std::process::Command`], for options without a method
    /// here.
    ///
    /// ```
    /// use std::os::unix::process::CommandExt;
    ///
    /// let mut command = upshift::process::Command::new("sh");
    /// command.with_std(|std| {
    ///     std.arg0("login-sh");
    /// });
    /// ```
    pub fn with_std(&mut self, change: impl FnOnce(&mut std::process::Command)) -> &mut Command {
        change(&mut self.lock());
        self
    }

    /// Adds an argument.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut echo = upshift::process::Command::new("echo");
    /// let output = echo.arg("one argument").arg("another").output().await?;
    /// assert_eq!(output.stdout, b"one argument another\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn arg(&mut self, argument: impl AsRef<OsStr>) -> &mut Command {
        self.lock().arg(argument);
        self
    }

    /// Adds arguments.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut shell = upshift::process::Command::new("sh");
    /// let status = shell.args(["-c", "exit 3"]).status().await?;
    /// assert_eq!(status.code(), Some(3));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn args(&mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> &mut Command {
        self.lock().args(arguments);
        self
    }

    /// Sets a variable of the program's environment.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut shell = upshift::process::Command::new("sh");
    /// shell.env("GREETING", "hello").args(["-c", "echo $GREETING"]);
    /// assert_eq!(shell.output().await?.stdout, b"hello\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn env(&mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> &mut Command {
        self.lock().env(name, value);
        self
    }

    /// Sets variables of the program's environment.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut shell = upshift::process::Command::new("sh");
    /// shell.envs([("ONE", "1"), ("TWO", "2")]).args(["-c", "echo $ONE $TWO"]);
    /// assert_eq!(shell.output().await?.stdout, b"1 2\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn envs(
        &mut self,
        variables: impl IntoIterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>,
    ) -> &mut Command {
        self.lock().envs(variables);
        self
    }

    /// Removes a variable from the program's environment.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut shell = upshift::process::Command::new("sh");
    /// shell.env("GREETING", "hello").env_remove("GREETING");
    /// shell.args(["-c", "echo ${GREETING-unset}"]);
    /// assert_eq!(shell.output().await?.stdout, b"unset\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn env_remove(&mut self, name: impl AsRef<OsStr>) -> &mut Command {
        self.lock().env_remove(name);
        self
    }

    /// Removes all variables from the program's environment, inherited ones too.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut env = upshift::process::Command::new("/usr/bin/env");
    /// env.env_clear().env("ONLY", "this");
    /// assert_eq!(env.output().await?.stdout, b"ONLY=this\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn env_clear(&mut self) -> &mut Command {
        self.lock().env_clear();
        self
    }

    /// Sets the working directory.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut pwd = upshift::process::Command::new("pwd");
    /// assert_eq!(pwd.current_dir("/").output().await?.stdout, b"/\n");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn current_dir(&mut self, directory: impl AsRef<Path>) -> &mut Command {
        self.lock().current_dir(directory);
        self
    }

    /// Sets the standard input; inherited by default.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::io::AsyncWriteExt;
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut wc = Command::new("wc");
    /// let mut child = wc.arg("-c").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().await?;
    /// child.stdin.as_mut().expect("stdin is piped").write_all(b"12345").await?;
    /// // `wait_with_output` closes the standard input, so that the program ends.
    /// let output = child.wait_with_output().await?;
    /// assert_eq!(output.stdout.trim_ascii(), b"5");
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn stdin(&mut self, stream: impl Into<Stdio>) -> &mut Command {
        self.lock().stdin(stream);
        self
    }

    /// Sets the standard output; inherited by default.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::io::AsyncReadExt;
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut echo = Command::new("echo");
    /// let mut child = echo.arg("hello").stdout(Stdio::piped()).spawn().await?;
    /// let mut text = String::new();
    /// child.stdout.take().expect("stdout is piped").read_to_string(&mut text).await?;
    /// assert_eq!(text, "hello\n");
    /// # child.wait().await?;
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn stdout(&mut self, stream: impl Into<Stdio>) -> &mut Command {
        self.lock().stdout(stream);
        self
    }

    /// Sets the standard error; inherited by default.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut shell = Command::new("sh");
    /// shell.args(["-c", "echo hidden >&2; exit 1"]).stderr(Stdio::null());
    /// assert!(!shell.status().await?.success());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn stderr(&mut self, stream: impl Into<Stdio>) -> &mut Command {
        self.lock().stderr(stream);
        self
    }

    /// Sets the user id with which the program runs.
    pub fn uid(&mut self, user: u32) -> &mut Command {
        self.lock().uid(user);
        self
    }

    /// Sets the group id with which the program runs.
    pub fn gid(&mut self, group: u32) -> &mut Command {
        self.lock().gid(group);
        self
    }

    /// Sets the process group that the program joins. Group 0 stands for a new group, which Ctrl-C
    /// does not reach.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// let mut shell = upshift::process::Command::new("sh");
    /// // Signal 0 only asks whether there is a group with the number of the shell.
    /// shell.args(["-c", "kill -s 0 -- -$$"]);
    /// assert!(shell.process_group(0).status().await?.success());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn process_group(&mut self, group: i32) -> &mut Command {
        self.lock().process_group(group);
        self
    }

    /// Sets whether the program is killed (SIGKILL) when its [`Child`] is dropped before it has
    /// ended. By default it continues to run.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::io::AsyncReadExt;
    /// use upshift::process::{Command, Stdio};
    ///
    /// let mut sleep = Command::new("sleep");
    /// sleep.arg("1000").stdout(Stdio::piped()).kill_on_drop(true);
    /// let mut child = sleep.spawn().await?;
    /// let mut stdout = child.stdout.take().expect("stdout is piped");
    /// drop(child);
    /// // The program has been killed, so its output ends.
    /// assert_eq!(stdout.read_to_end(&mut Vec::new()).await?, 0);
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub fn kill_on_drop(&mut self, kill: bool) -> &mut Command {
        self.kill_on_drop = kill;
        self
    }

    /// Starts the program.
    ///
    /// # Cancellation safety
    /// If the future is dropped, the program may already have started, or may still start. Its
    /// [`Child`] is then dropped.
    ///
    /// # Errors
    /// If the program cannot be executed (`NotFound`, `PermissionDenied`, …); if the limit on
    /// processes or descriptors is reached; also fails outside a runtime.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    ///
    /// let mut child = Command::new("true").spawn().await?;
    /// // … the program runs beside the coroutine …
    /// assert!(child.wait().await?.success());
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn spawn(&mut self) -> io::Result<Child> {
        let command = self.inner.clone();
        let kill_on_drop = self.kill_on_drop;
        blocking::run(move || {
            let mut command = command.lock().unwrap_or_else(PoisonError::into_inner);
            let child = command.spawn().map_err(|error| {
                let program = command.get_program().to_string_lossy();
                io::Error::new(error.kind(), format!("cannot start {program}: {error}"))
            })?;
            Child::new(child, kill_on_drop)
        })
        .await
    }

    /// Starts the program and waits for its end.
    ///
    /// # Cancellation safety
    /// A dropped future drops the [`Child`], which kills the program if
    /// [`kill_on_drop`](Command::kill_on_drop) is set.
    ///
    /// # Errors
    /// The errors of [`spawn`](Command::spawn).
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    ///
    /// assert!(Command::new("true").status().await?.success());
    /// assert_eq!(Command::new("false").status().await?.code(), Some(1));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn status(&mut self) -> io::Result<ExitStatus> {
        let mut child = self.spawn().await?;
        // The piped streams are not read.
        drop((child.stdout.take(), child.stderr.take()));
        child.wait().await
    }

    /// Starts the program, collects its standard output and error, and waits for its end.
    ///
    /// # Cancellation safety
    /// Like that of [`status`](Command::status).
    ///
    /// # Errors
    /// The errors of [`spawn`](Command::spawn), and errors of reading.
    ///
    /// ```
    /// # upshift::Runtime::builder().vcpus(1).build().unwrap().block_on(async {
    /// use upshift::process::Command;
    ///
    /// let script = "echo result; echo problem >&2";
    /// let output = Command::new("sh").args(["-c", script]).output().await?;
    /// assert!(output.status.success());
    /// assert_eq!((&*output.stdout, &*output.stderr), (&b"result\n"[..], &b"problem\n"[..]));
    /// # std::io::Result::Ok(()) }).unwrap();
    /// ```
    pub async fn output(&mut self) -> io::Result<Output> {
        self.stdout(Stdio::piped()).stderr(Stdio::piped());
        self.spawn().await?.wait_with_output().await
    }
}

impl From<std::process::Command> for Command {
    fn from(command: std::process::Command) -> Command {
        Command {
            inner: Arc::new(Mutex::new(command)),
            kill_on_drop: false,
        }
    }
}

impl fmt::Debug for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lock().fmt(f)
    }
}
