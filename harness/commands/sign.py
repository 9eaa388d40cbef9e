"""`shardgate sign`: a signature beside a set's certificate.

Place in the flow: outermost; calls `contracts.signing`. Imports light modules at the top.
"""

from __future__ import annotations

from pathlib import Path

import click

from harness.commands import shell


@click.command()
@click.argument("path", type=click.Path(exists=True, path_type=Path), metavar="CERTIFIED")
@click.option(
    "--key",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file of the private key (Ed25519, ECDSA or RSA).",
)
@shell.json_option
def sign(path: Path, key: Path, as_json: bool) -> int:
    """Sign the certificate of the folder CERTIFIED, once it holds, into certificate.dsse.json beside it.

    The passphrase of an encrypted key comes from the environment variable SHARDGATE_KEY_PASSPHRASE. Exits 1,
    and signs nothing, when the set is not what its certificate says.
    """
    from contracts.certificate import CertificateAltered, SignatureWrong
    from contracts.signing import sign_certificate
    from contracts.verifying import verify

    try:
        result = verify(path)
    except CertificateAltered as error:
        shell.fail(error, as_json)
        return shell.FINDINGS
    # An old envelope is replaced; anything else that does not hold must not get a signature.
    broken = [problem for problem in result.problems if problem["kind"] != SignatureWrong.__name__]
    if broken:
        if as_json:
            shell.emit(result)
        click.echo(f"not signed: {broken[0]['shard']}: {broken[0]['message']}", err=True)
        return shell.FINDINGS
    envelope = sign_certificate(path, key)
    if as_json:
        shell.emit({"certificate": result.certificate, "envelope": str(envelope)})
    else:
        click.echo(f"signed {result.certificate} into {envelope}")
    return shell.HOLDS
