//! Translates names of users and groups to numbers and back, according to `/etc/passwd` and
//! `/etc/group`.

use serde::Deserialize;

/// Returns the number of a user, which is given by number or name.
///
/// # Errors
/// The error as text, if the user does not exist or `/etc/passwd` cannot be read.
pub fn user(text: &str) -> Result<u32, String> {
    Name::Text(text.to_string()).find("/etc/passwd", "user")
}

/// Returns the name of a user, or the number if `/etc/passwd` does not contain the user.
pub(crate) fn user_name(user: u32) -> String {
    let text = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(user)).then(|| name.to_string())
    });
    name.unwrap_or_else(|| user.to_string())
}

/// Returns the number of a group, which is given by number or name.
///
/// # Errors
/// The error as text, if the group does not exist or `/etc/group` cannot be read.
pub fn group(text: &str) -> Result<u32, String> {
    Name::Text(text.to_string()).find("/etc/group", "group")
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(crate) enum Name {
    Number(u32),
    Text(String),
}

impl Name {
    pub(super) fn find(&self, database: &str, kind: &str) -> Result<u32, String> {
        let name = match self {
            Name::Number(number) => return Ok(*number),
            Name::Text(name) => name,
        };
        // A tool that generates the file from a template may put numbers in quotes, too.
        if let Ok(number) = name.parse() {
            return Ok(number);
        }
        let text = std::fs::read_to_string(database)
            .map_err(|error| format!("{database}: {error}: give the {kind} as a number"))?;
        text.lines()
            .map(|line| line.split(':').collect::<Vec<_>>())
            .find(|fields| fields.first() == Some(&name.as_str()))
            .and_then(|fields| fields.get(2)?.parse().ok())
            .ok_or_else(|| {
                format!("{kind} `{name}` is not in {database}: create it, or give a number")
            })
    }
}
