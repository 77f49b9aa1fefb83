# shellcheck shell=bash
# make_importable FOLDER: let Python import the package from FOLDER, with its version, as if it were
# installed. Source this file, and call the function in the root of the project.
make_importable() {
    local version
    version=$(sed -n 's/^version = "\(.*\)"$/\1/p' pyproject.toml)
    mkdir -p "$1/scanline" "$1/scanline-$version.dist-info"
    ln -s "$PWD"/{kernels,model,service,weights} "$1/scanline/"
    printf 'Metadata-Version: 2.1\nName: scanline\nVersion: %s\n' "$version" \
        >"$1/scanline-$version.dist-info/METADATA"
    export PYTHONPATH="$1" PYTHONUNBUFFERED=1
}
