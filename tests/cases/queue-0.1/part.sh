#!/bin/sh
# part.sh START END FILE: write a record for each item; the items from 10 on fail, those from 20 on wait
echo "$1" >> parts.txt
[ "$1" != 10 ] || [ -e mended ] || exit 3
[ "$1" != 20 ] || [ -e ready ] || sleep 600
for n in $(seq "$1" $(($2 - 1))); do echo "{\"item\": $n}"; done > "$3"
