"""Private things as they stand in real logs and settings: what must be gone, and in what it stood."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Plant:
    """A private value and the ways in which it is written; `{}` is the value."""

    value: str
    templates: tuple[str, ...]


HOST, FQDN, USER, HOME = "gpu-07", "gpu-07.dc3.acme.example", "jdoe", "/srv/people/jdoe"
API_KEY = "correct horse's battery"
"""A known secret that no pattern would find."""

NAMED = (
    "HF_TOKEN={}", "export WANDB_API_KEY={}", "api_key='{}', served_model_name='x'", '"clientSecret": "{}"',
    '{{\\"admin_api_key\\": \\"{}\\"}}', "--api-key {}", "--admin-api-key={}", "'--api-key', '{}', '--tp', '8'",
    "Authorization: Bearer {}", "headers={{'authorization': 'Basic {}'}}", "(b'x-api-key', b'{}')",
    "curl -H 'Authorization: Bearer {}' http://127.0.0.1:30000/generate", "MYSQL_PASSWORD: {}", "Cookie: session={}",
    "https://deploy:{}@git.acme.example/models.git",
)  # fmt: skip

PLANTS = (
    Plant("plain-and-short-1", NAMED),
    Plant("8f3a1c", NAMED),
    Plant("hf_AbCdEfGhIjKlMnOpQrStUvWx", ("{}", "token {} was refused", "x={}", "({})")),
    Plant("sk-proj-a1B2c3D4e5F6g7H8", ("{}", "key: {}, next", '"{}"')),
    Plant("ghp_1234567890abcdefABCDEF1234567890abcd", ("git clone with {}", "{}")),
    Plant("AKIAIOSFODNN7EXAMPLE", ("aws {} region", "{}")),
    Plant("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4", ("{}", "jwt={}")),
    Plant("wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY34", ("{}", "value {} end")),
    Plant(API_KEY, ("{}", "said {} twice {}")),
    Plant("10.42.7.19", ("{}", "{}:30000", "tcp://{}:29500", "eth0_{}", "({})", "peer={}, port=1", "{}.", "v{}")),
    Plant("2001:db8:85a3::8a2e:370:7334", ("{}", "[{}]:20000", "inet6 {}/64", "dist={}", "{}: refused")),
    Plant("fe80::1c2f:aaff:fe12:9", ("{}%eth0", "{}", "'{}'")),
    Plant("3c:ec:ef:12:9a:bc", ("{}", "link/ether {} brd", "[{}]")),
    Plant("b4-2e-99-12-9a-bc", ("{}", "mac {}.")),
    Plant(HOST, ("{}", "on {}: started", "{}-bmc", "{}_eth0", "host='{}'", "GPU-07 of {}", "{}.")),
    Plant(FQDN, ("{}", "http://{}:8080/x", "{}.")),
    Plant("node3.cluster.internal", ("--dist-init-addr {}:20000", "{}")),
    Plant("proxy.acme.example", ("http_proxy=http://{}:3128",)),
    Plant("ip-10-42-7-19", ("{}", "{}.ec2.internal")),
    Plant(USER, ("{}", "/scratch/{}/models", "user {} ran", "{}_models", "uid=1000({})", "JDOE {}")),
    Plant("jane.roe@acme.example", ("{}", "<{}>", "mailto:{}")),
    Plant("roe", ("/home/{}/models/Kimi", "'/data/home/{}/x'", "/Users/{}/y:1", "file:///home/{}/a b")),
    Plant(HOME, ("{}", "{}/models", "cd {};", "in {}.")),
    Plant("Tell me about my illness", (
        "Receive: obj=GenerateReqInput(rid='1', text='{}', stream=False)", "prompt='{}'",
        '{{"messages": [{{"content": "{}"}}]}}',
        "Finish: obj=GenerateReqInput(rid='1'), out={{'text': '{}'}}", "input_value={{'content': \"it's {}\"}}",
        "Receive OpenAI: obj=ChatCompletionRequest(messages=[{{'role': 'user', 'content': '{}'}}])",
    )),
    Plant("MIIEvQIBADANBgkq", ("-----BEGIN PRIVATE KEY-----\n{}\n{}\n-----END PRIVATE KEY-----",
                              "x -----BEGIN RSA PRIVATE KEY----- {} -----END RSA PRIVATE KEY----- y")),
)  # fmt: skip
