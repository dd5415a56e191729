//! Each kind of mistake in a small file, with the whole message.

use std::path::Path;

use serde::Deserialize;

use super::*;

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shop {
    name: String,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    till: Till,
    #[serde(default)]
    clerk: Vec<Clerk>,
}

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Till {
    coins: u8,
    open: bool,
}

#[derive(Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Clerk {
    number: u16,
}

impl Keys for Shop {
    const PARTS: &'static [&'static [Setting]] = &[
        &[
            ("name", Allowed::Words("a text")),
            ("secret", Allowed::Hidden("a text of 3 letters")),
            ("till", Allowed::Table("[till]")),
            ("till.coins", Allowed::Number(1, 200)),
            ("till.open", Allowed::Truth),
        ],
        &[
            ("clerk", Allowed::Words("[[clerk]] tables")),
            ("clerk[..]", Allowed::Words("a table that begins with [[clerk]]")),
            ("clerk[..].number", Allowed::Number(1, 9)),
        ],
    ];
}

const GOOD: &str = "name = \"x\"\n[till]\ncoins = 5\nopen = true\n[[clerk]]\nnumber = 1\n[[clerk]]\nnumber = 2\n";

/// What is said about a text, as the content of `shop.toml`.
fn said(text: &str) -> String {
    let file = Path::new("shop.toml");
    let checked = || {
        let shop: Shop = read(file, text)?;
        let check = Checker::of::<Shop>(file);
        check.number("till.coins", shop.till.coins)?;
        shop.clerk.iter().enumerate().try_for_each(|(i, clerk)| check.number(&format!("clerk[{i}].number"), clerk.number))
    };
    checked().map_or_else(|error: ConfigError| error.in_text(text).to_string(), |()| "nothing".into())
}

#[test]
fn each_kind_of_mistake_is_named_with_file_line_key_value_and_what_is_allowed() {
    assert_eq!(said(GOOD), "nothing");
    for (from, to, wanted) in [
        ("coins = 5", "coins = 300", "shop.toml, line 3: till.coins is 300; allowed: a whole number from 1 to 200"),
        ("coins = 5", "coins = 0", "shop.toml, line 3: till.coins is 0; allowed: 1 to 200"),
        ("coins = 5", "coins = [5]", "shop.toml, line 3: till.coins is [5]; allowed: a whole number from 1 to 200"),
        ("number = 2", "number = 10", "shop.toml, line 8: clerk[1].number is 10; allowed: 1 to 9"),
        ("number = 2", "number = \"b\"", "shop.toml, line 8: clerk[1].number is \"b\"; allowed: a whole number from 1 to 9"),
        ("name = \"x\"", "secret = 7", "shop.toml, line 1: secret is a number; allowed: a text of 3 letters"),
        ("coins = 5", "coins = 2020-02-02", "shop.toml, line 3: till.coins is 2020-02-02; allowed: a whole number from 1 to 200"),
        ("[[clerk]]\nnumber = 2", "", "nothing"),
        ("[till]", "[[till]]", "shop.toml, line 2: till is a list; allowed: a table that begins with [till]"),
        // Unknown keys, in each kind of table.
        ("name = \"x\"", "nane = \"x\"", "shop.toml, line 1: nane is an unknown key; allowed: name, secret, till, clerk"),
        ("coins = 5", "coinz = 5", "shop.toml, line 3: till.coinz is an unknown key; allowed: coins, open"),
        ("number = 2", "numbre = 2", "shop.toml, line 8: clerk[1].numbre is an unknown key; allowed: number"),
        ("coins = 5", "\"a.\\nb\" = 5", "shop.toml, line 3: till.\"a.\\nb\" is an unknown key; allowed: coins, open"),
        ("[till]", "[tills]", "shop.toml, line 2: tills is an unknown key; allowed: name, secret, till, clerk"),
        // Missing keys, in each kind of table.
        ("name = \"x\"\n", "", "shop.toml: name is missing; allowed: a text"),
        ("coins = 5\n", "", "shop.toml, line 2: till.coins is missing; allowed: a whole number from 1 to 200"),
        ("number = 2", "", "shop.toml, line 7: clerk[1].number is missing; allowed: a whole number from 1 to 9"),
        // Keys given twice.
        ("coins = 5", "coins = 5\ncoins = 6", "shop.toml, line 4: till.coins is given twice; allowed: once"),
        ("number = 2", "number = 2\nnumber = 3", "shop.toml, line 9: clerk[1].number is given twice; allowed: once"),
        ("[[clerk]]\nnumber = 2", "[till]", "shop.toml, line 7: till is given twice; allowed: once"),
        // No TOML.
        ("coins = 5", "coins =", "shop.toml, line 3: \"coins =\" is not TOML: string values must be quoted, expected literal string"),
        ("name = \"x\"", "secrte \"abc\"", "shop.toml, line 1: it is not TOML: key with no value, expected `=`"),
        (
            "name = \"x\"",
            "secret = \"\"\"\nabc\"\"\" d",
            "shop.toml, line 2: it is not TOML: unexpected key or value, expected newline, `#`",
        ),
        ("name = \"x\"", "secrte = abc", "shop.toml, line 1: it is not TOML: string values must be quoted, expected literal string"),
        (
            "name = \"x\"",
            "secret = abc",
            "shop.toml, line 1: \"secret = ...\" is not TOML: string values must be quoted, expected literal string",
        ),
    ] {
        assert_eq!(said(&GOOD.replacen(from, to, 1)), wanted, "{to}");
    }
}

#[test]
fn a_key_that_is_not_there_is_sought_where_it_would_be() {
    let check = Checker::of::<Shop>(Path::new("shop.toml"));
    for (key, wanted) in [
        ("till.taxes", "shop.toml, line 2: "),
        ("clerk[1].age", "shop.toml, line 7: "),
        ("clerk[7].age", "shop.toml: "),
        ("till2", "shop.toml: "),
    ] {
        let said = check.refuse(key, 1, "2").in_text(GOOD).to_string();
        assert_eq!(said, format!("{wanted}{key} is 1; allowed: 2"));
    }
}

#[test]
fn what_comes_from_no_file_is_named_by_its_line() {
    let error = |text: &str| read::<Shop>(Path::new(""), text).expect_err("wrong").to_string();
    assert_eq!(error("name = \"x\"\n[till]\ncoins = -1\n"), "line 3: till.coins is -1; allowed: a whole number from 1 to 200");
    assert_eq!(error(""), "name is missing; allowed: a text");
}

#[test]
fn what_is_long_is_not_repeated() {
    let long = "x".repeat(500);
    assert_eq!(
        said(&GOOD.replacen('5', &format!("\"{long}\""), 1)),
        "shop.toml, line 3: till.coins is a text; allowed: a whole number from 1 to 200"
    );
    assert_eq!(
        said(&format!("{long} = 1\n{GOOD}")),
        "shop.toml, line 1: a key of 500 bytes is an unknown key; allowed: name, secret, till, clerk"
    );
}
