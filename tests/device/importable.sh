# shellcheck shell=bash
# make_importable FOLDER: let Python import the package from FOLDER, as if it were installed. Source
# this file, and call the function in the root of the project.
make_importable() {
    mkdir -p "$1/scanline"
    ln -s "$PWD"/{kernels,model,service,weights} "$1/scanline/"
    export PYTHONPATH="$1" PYTHONUNBUFFERED=1
}
