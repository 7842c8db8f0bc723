//! Tests of the shell: a machine boots to the shell, commands are typed on the console, and the
//! answers are checked.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use crate::build::Image;
use crate::disk::{Content, Disk};
use crate::peer;
use crate::qemu::{Machine, Network};
use crate::session::Session;

pub(super) const NAME: &str = "shell";

const PROMPT: &str = "\n$ ";
const CTRL_C: &str = "\x03";
const CTRL_D: &str = "\x04";

type Outcome = Result<(), String>;

type Test = (&'static str, fn(&Image) -> Outcome);

const TESTS: [Test; 5] = [
    ("commands_answer", commands_answer),
    ("programs_run_at_their_levels", programs_run_at_their_levels),
    ("programs_start_from_the_disk", programs_start_from_the_disk),
    (
        "a_program_reads_input_and_is_killed",
        a_program_reads_input_and_is_killed,
    ),
    (
        "a_server_answers_on_a_forwarded_port",
        a_server_answers_on_a_forwarded_port,
    ),
];

/// Runs all tests. Returns true if none failed.
pub(super) fn run(image: &Image) -> bool {
    let mut all_passed = true;
    for (name, test) in TESTS {
        match test(image) {
            Ok(()) => println!("{NAME}: test {name} ... ok"),
            Err(reason) => {
                println!("{NAME}: test {name} ... FAILED: {reason}");
                all_passed = false;
            }
        }
    }
    all_passed
}

struct Shell(Session);

impl Shell {
    fn boot(
        image: &Image,
        smp: u32,
        disk: Option<&Disk>,
        network: Network,
    ) -> Result<Shell, String> {
        let mut machine = Machine::new(smp, "init=shell");
        machine.network = network;
        let mut session = Session::boot(image, &machine, disk.map(Disk::path))?;
        session.read_until(PROMPT)?;
        Ok(Shell(session))
    }

    /// Types a command; returns the lines of its answer.
    fn run(&mut self, command: &str) -> Result<String, String> {
        self.0.write(&format!("{command}\r"))?;
        // Skip the echo.
        self.0.read_until("\n")?;
        // The prompt of an empty answer follows the echo at once.
        let mut answer = String::from("\n");
        while !answer.ends_with(PROMPT) {
            answer += &self.0.read_until("$ ")?;
        }
        Ok(answer)
    }

    /// Types a command whose answer must contain all of `parts`.
    fn expect(&mut self, command: &str, parts: &[&str]) -> Outcome {
        let answer = self.run(command)?;
        match parts.iter().find(|part| !answer.contains(*part)) {
            Some(part) => Err(format!("`{command}`: no `{part}` in the answer:{answer}")),
            None => Ok(()),
        }
    }

    /// Ends the machine, which checks that it has leaked no memory.
    fn exit(mut self) -> Outcome {
        self.0.write("exit\r")?;
        let (status, output) = self.0.end()?;
        match (status, output.contains("upshift: shell ended with 0")) {
            (Some(0), true) => Ok(()),
            _ => Err(format!("the machine ended with {status:?}:\n{output}")),
        }
    }
}

fn commands_answer(image: &Image) -> Outcome {
    let mut shell = Shell::boot(image, 1, None, Network::No)?;
    shell.expect("help", &["nice LEVEL PROGRAM", "put FILE TEXT"])?;
    shell.expect("programs", &["\nchild\n", "\nshell\n", "\nmatrix\n"])?;
    shell.expect("ps", &[" running  shell"])?;
    shell.expect("top", &["hart programs", "\n   0 ", "time of all harts"])?;
    shell.expect("child exit 3", &["has ended with status 3: child"])?;
    // A backspace erases a character.
    shell.expect("child exit 45\x7f\x7f6", &["status 6: child"])?;
    for (wrong, hint) in [
        ("nonsense", "no such program in the archive or on the disk"),
        ("top long", "give a number of seconds"),
        ("top 0", "give a number of seconds"),
        ("kill", "give the number of a process"),
        ("kill 1", "no such process among the children"),
        ("ls", "boot with --disk FILE"),
        ("cat", "boot with --disk FILE"),
        ("put", "boot with --disk FILE"),
        ("vdso", "not a program"),
    ] {
        shell.expect(wrong, &[hint])?;
    }
    // A name longer than a call accepts.
    shell.expect(&"x".repeat(200), &["an argument is out of range"])?;
    shell.expect("", &[])?;
    shell.exit()
}

fn programs_run_at_their_levels(image: &Image) -> Outcome {
    let mut shell = Shell::boot(image, 2, None, Network::No)?;
    let number = |answer: &str| {
        let number = answer.split_whitespace().next();
        number.map(str::to_owned).ok_or("no number")
    };
    // The shell answers although more programs are busy than there are harts.
    let mut all = Vec::new();
    for level in ["1", "40", "41"] {
        all.push(number(
            &shell.run(&format!("nice {level} child endless &"))?,
        )?);
    }
    let processes = shell.run("ps")?;
    for (process, level) in all.iter().zip(["1", "40", "41"]) {
        let row = processes
            .lines()
            .find(|line| line.trim_start().starts_with(process));
        let words: Vec<_> = row.unwrap_or("").split_whitespace().collect();
        if words.get(2) != Some(&level) || words.get(3) != Some(&level) {
            return Err(format!("{process} has not level {level}:{processes}"));
        }
    }
    let top = shell.run("top")?;
    let times: Vec<_> = top
        .lines()
        .skip_while(|line| !line.starts_with("level"))
        .collect();
    let has = |level: &str| {
        times
            .iter()
            .any(|line| line.split_whitespace().next() == Some(level))
    };
    // There is no hart for the third level.
    if !(has("1") && has("40")) || has("41") {
        return Err(format!("other levels have run:{top}"));
    }
    for process in &all {
        shell.0.write(&format!("kill {process}\r"))?;
        shell
            .0
            .read_until(&format!("{process} was killed: child\n"))?;
    }
    for wrong in [
        "nice",
        "nice 40",
        "nice 0 child",
        "nice 63 child",
        "nice x child",
    ] {
        shell.expect(wrong, &["give a level from 1, most urgent, to 62"])?;
    }
    shell.expect("nice 7 child exit 4", &["status 4: child"])?;
    shell.exit()
}

fn programs_start_from_the_disk(image: &Image) -> Outcome {
    let disk = Disk::new(Content::Programs)?;
    let mut shell = Shell::boot(image, 2, Some(&disk), Network::No)?;
    shell.expect("ls", &["bin/\n", "notes/\n"])?;
    shell.expect("ls bin", &[" child\n", " truncated\n"])?;
    shell.expect("bin/child exit 5", &["has ended with status 5: bin/child"])?;
    for wrong in ["bin/truncated", "bin/large", "bin/empty", "notes/text"] {
        shell.expect(wrong, &[wrong, "not a program: an ELF file for RISC-V"])?;
    }
    // A program in the directory `bin` needs no path, unless the archive has a program of that
    // name.
    shell.expect("truncated", &["not a program"])?;
    shell.expect("put notes/hello Hello, disk.", &[])?;
    shell.expect("cat notes/hello", &["\nHello, disk.\n"])?;
    shell.expect("ls notes", &["       13 hello\n", " text\n"])?;
    shell.expect("cat bin/child", &["the file is not text"])?;
    for (wrong, hint) in [
        ("cat none", "no such file on the disk"),
        ("cat bin", "the path is a directory"),
        ("put bin text", "the path is a directory"),
        ("put notes/text/more text", "a part of the path is a file"),
        ("put a//b text", "separated by single slashes"),
        ("put", "a name has 1 to 64 bytes"),
        ("ls none", "no such file"),
        ("ls notes/text", "a file, not a directory"),
        ("rm none", "no such file"),
        ("rm bin", "the path is a directory"),
        ("bin", "no such program"),
    ] {
        shell.expect(wrong, &[hint])?;
    }
    shell.expect("rm notes/text", &[])?;
    shell.exit()?;
    // The file exists when another machine boots.
    let mut shell = Shell::boot(image, 1, Some(&disk), Network::No)?;
    shell.expect("cat notes/hello", &["\nHello, disk.\n"])?;
    shell.expect("rm notes/hello", &[])?;
    shell.expect("ls notes", &["no such file"])?;
    shell.exit()
}

fn a_program_reads_input_and_is_killed(image: &Image) -> Outcome {
    let mut shell = Shell::boot(image, 1, None, Network::No)?;
    // The first line is the echo of the console, the second that of the program.
    shell.0.write("child echo\rone\r")?;
    shell.0.read_until("one\none\n")?;
    shell.0.write(CTRL_D)?;
    shell.0.read_until(PROMPT)?;
    shell.0.write("child endless\r")?;
    shell.0.read_until("child endless\n")?;
    // The shell reads a line that the program does not read.
    shell.0.write("child exit 8\r")?;
    shell.0.read_until("child exit 8\n")?;
    shell.0.write(CTRL_C)?;
    shell.0.read_until("was killed: child")?;
    shell.0.read_until("status 8: child")?;
    shell.0.read_until(PROMPT)?;
    // Ctrl-C erases the line at the prompt.
    shell.0.write("nonsense")?;
    shell.0.read_until("nonsense")?;
    shell.0.write(CTRL_C)?;
    shell.0.read_until(PROMPT)?;
    shell.0.write(CTRL_D)?;
    let (status, output) = shell.0.end()?;
    match status {
        Some(0) => Ok(()),
        _ => Err(format!(
            "Ctrl-D ends the machine with {status:?}:\n{output}"
        )),
    }
}

fn a_server_answers_on_a_forwarded_port(image: &Image) -> Outcome {
    let port = peer::free_port()?;
    let network = Network::ForwardedTo { port, to: 7 };
    let mut shell = Shell::boot(image, 2, None, network)?;
    shell.expect("sockets serve &", &["runs in the background"])?;
    let start = Instant::now();
    while let Err(error) = echo(port) {
        if start.elapsed() > Duration::from_secs(120) {
            return Err(format!("port {port}: {error}"));
        }
        std::thread::sleep(Duration::from_millis(300));
    }
    shell.expect("ps", &[" sockets"])?;
    shell.exit()
}

/// Sends a word to the echo server, and receives it again.
fn echo(port: u16) -> std::io::Result<()> {
    let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    connection.write_all(b"hello")?;
    let mut answer = [0; 5];
    connection.read_exact(&mut answer)?;
    if &answer != b"hello" {
        return Err(std::io::Error::other("the answer differs"));
    }
    Ok(())
}
