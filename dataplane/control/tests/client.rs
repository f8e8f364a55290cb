//! Tests of the client against programs that break the protocol.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use dataplane_control::{Call, Client, Error};

/// Connects a client to a server that handles one connection. The server first reads the request.
fn client_of(serve: impl FnOnce(UnixStream) + Send + 'static) -> (Client, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path: PathBuf = folder.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        BufReader::new(&stream).read_line(&mut String::new()).unwrap();
        serve(stream);
    });
    (Client::connect(&path).unwrap(), folder)
}

#[test]
fn answer_in_single_bytes_ends_at_the_time_limit() {
    let (mut client, _folder) = client_of(|mut stream| {
        // Sends single bytes faster than the time limit, until the client closes the connection.
        while stream.write_all(b" ").is_ok() {
            thread::sleep(Duration::from_millis(5));
        }
    });
    client.set_timeout(Duration::from_millis(200)).unwrap();
    let error = client.call(&Call::Hello {}).unwrap_err();
    assert!(matches!(error, Error::Timeout(..)), "{error}");
}

#[test]
fn answer_may_arrive_in_pieces() {
    let (mut client, _folder) = client_of(|mut stream| {
        for byte in br#"{"id":1,"result":{"pieces":true}}"# {
            stream.write_all(&[*byte]).unwrap();
        }
        stream.write_all(b"\n").unwrap();
    });
    assert_eq!(client.call(&Call::Hello {}).unwrap().json(), r#"{"pieces":true}"#);
}

#[test]
fn answer_without_an_end_is_an_error() {
    let (mut client, _folder) = client_of(|mut stream| stream.write_all(br#"{"id":1,"#).unwrap());
    let error = client.call(&Call::Hello {}).unwrap_err();
    assert!(matches!(error, Error::Ended(_)), "{error}");
    // The program may still run.
    assert!(error.to_string().ends_with(": the program closed the connection before it answered"), "{error}");
    // An answer without a newline that never ends.
    let (mut client, _folder) = client_of(|mut stream| {
        let piece = vec![b' '; 1 << 20];
        while stream.write_all(&piece).is_ok() {}
    });
    let error = client.call(&Call::Hello {}).unwrap_err();
    assert!(error.to_string().contains("the answer is too long"), "{error}");
}

#[test]
fn characters_that_change_the_direction_of_text_are_replaced() {
    let (mut client, _folder) = client_of(|mut stream| {
        stream.write_all("{\"id\":1,\"result\":[\"a\u{202e}b\\u2066c\"]}\n".as_bytes()).unwrap();
    });
    let values: Vec<String> = client.call(&Call::Hello {}).unwrap().parse().unwrap();
    assert_eq!(values, ["a\u{fffd}b\u{fffd}c"]);
    let (mut client, _folder) = client_of(|mut stream| {
        let error = r#"{"code":"failed","message":"x\u202ey","help":"z\u200f"}"#;
        writeln!(stream, r#"{{"id":1,"error":{error}}}"#).unwrap();
    });
    let error = client.call(&Call::Hello {}).unwrap_err().to_string();
    assert!(error.contains("x\u{fffd}y") && error.contains("z\u{fffd}"), "{error}");
}
