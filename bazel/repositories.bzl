"""Takes a repository from the distribution's package, or from the upstream archive if the package is not installed."""

def _packaged_archive(repository_ctx):
    folder = repository_ctx.path(repository_ctx.attr.path)
    if folder.exists:
        for child in folder.readdir():
            repository_ctx.symlink(child, child.basename)
    else:
        repository_ctx.download_and_extract(
            repository_ctx.attr.urls,
            sha256 = repository_ctx.attr.sha256,
            stripPrefix = repository_ctx.attr.strip_prefix,
        )

packaged_archive = repository_rule(
    implementation = _packaged_archive,
    attrs = {
        "path": attr.string(mandatory = True, doc = "The folder of the distribution's package."),
        "sha256": attr.string(mandatory = True),
        "strip_prefix": attr.string(mandatory = True),
        "urls": attr.string_list(mandatory = True),
    },
)
