//! Assigned programs that begin anew, to be rid of what is held against them. `docs/threat-model.md` names these tests.

use std::os::unix::process::CommandExt;
use std::process::Command;

use upshift_daemon::{Config, Daemon};
use upshift_elevate::sys::process_time;

use crate::assign::{assigned, rule};
use crate::attacks::{ALICE, from_now, open_config, takes_at_most, villain};
use crate::beside::{TIME, bystander, us};
use crate::child::{number, pin, setting, wait_for_go};
use crate::hostile::census;
use crate::process::{monotonic, until};
use crate::{permitted, socket, turn};

/// A program that burns for 3 ms and becomes itself again, until the deadline; how often.
pub(crate) fn renewer() {
    pin(number("CPU") as usize);
    let lives: u64 = setting("LIVES").parse().unwrap_or(0);
    let deadline = match setting("DEADLINE").parse() {
        Ok(deadline) => deadline,
        Err(_) => {
            println!("ready");
            wait_for_go()
        }
    };
    if monotonic() >= deadline {
        println!("lives {lives}");
        wait_for_go();
        return;
    }
    let end = monotonic() + 3_000_000;
    while monotonic() < end {
        std::hint::spin_loop();
    }
    let error = Command::new(std::env::current_exe().unwrap())
        .args(std::env::args_os().skip(1))
        .env("DEADLINE", deadline.to_string())
        .env("LIVES", (lives + 1).to_string())
        .env_remove("USER")
        .exec();
    panic!("{error}");
}

#[test]
fn who_executes_itself_again_and_again_does_not_evade_its_budget() {
    let _turn = turn();
    if !permitted() {
        return;
    }
    let path = socket("renewer");
    let _daemon = Daemon::start(Config {
        assign: vec![rule(ALICE, 8)],
        ..open_config("renewer")
    })
    .unwrap();
    let mut bystander = bystander(&path, 0);
    let mut renewer = villain("renewer", &path, ALICE, (0, 0), &[]);
    until("it is assigned", || {
        assigned(&census(&path), renewer.pid()).is_some()
    });
    let used = || process_time(renewer.pid()).unwrap() / 1000;
    let (end, before) = (from_now(TIME), used());
    bystander.go_until(end);
    renewer.go_until(end);
    let others = bystander.number("used ");
    let burnt = process_time(renewer.pid()).unwrap() / 1000 - before;
    let lives = renewer.number("lives ");
    println!(
        "{lives} lives, {burnt} us; bystander {others} us of {}",
        us()
    );
    assert!(lives > 10);
    // 80 %, and half of the rest.
    assert!(takes_at_most(93, burnt, us()));
}
