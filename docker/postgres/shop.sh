#!/bin/bash
# The shop's tables, its user, one that may only read, and one for its outbox; runs once, when the volume is empty.
set -euo pipefail
psql --no-psqlrc --set ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres <<'SQL'
\set shop_password `cat /run/secrets/shop_password`
\set reader_password `cat /run/secrets/shop_reader_password`
\set outbox_password `cat /run/secrets/outbox_password`
CREATE ROLE shop LOGIN PASSWORD :'shop_password';
CREATE ROLE shop_reader LOGIN PASSWORD :'reader_password';
CREATE ROLE outbox LOGIN PASSWORD :'outbox_password';
CREATE DATABASE shop OWNER shop;
\connect shop
-- The outbox has a schema of its own. Who sends owns it and sees nothing else; the shop adds to it.
CREATE SCHEMA outbox AUTHORIZATION outbox;
GRANT USAGE ON SCHEMA outbox TO shop, shop_reader;
ALTER ROLE outbox IN DATABASE shop SET search_path = outbox;
ALTER ROLE shop IN DATABASE shop SET search_path = public, outbox;
ALTER DEFAULT PRIVILEGES FOR ROLE outbox IN SCHEMA outbox GRANT SELECT, INSERT ON TABLES TO shop;
ALTER DEFAULT PRIVILEGES FOR ROLE outbox IN SCHEMA outbox GRANT USAGE ON SEQUENCES TO shop;
ALTER DEFAULT PRIVILEGES FOR ROLE outbox IN SCHEMA outbox GRANT SELECT ON TABLES TO shop_reader;
SET ROLE shop;
CREATE TABLE orders (
    order_id   TEXT PRIMARY KEY,
    user_id    INTEGER NOT NULL,
    status     TEXT NOT NULL,
    amount     NUMERIC(10, 2) NOT NULL,
    updated_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX orders_by_time ON orders (updated_at);
-- A row for every message that was handled: an order that comes twice shows up twice.
CREATE TABLE processed_orders (
    order_id     TEXT NOT NULL,
    processed_at TIMESTAMPTZ NOT NULL DEFAULT now()
);
CREATE INDEX processed_orders_by_order ON processed_orders (order_id);
CREATE VIEW audit AS
    SELECT count(*) AS orders,
           count(handled) AS handled,
           count(*) FILTER (WHERE handled IS NULL) AS not_handled,
           count(*) FILTER (WHERE handled > 1) AS handled_twice
    FROM orders
    LEFT JOIN (SELECT order_id, count(*) AS handled FROM processed_orders GROUP BY 1) AS processed
        USING (order_id);
GRANT SELECT ON orders, processed_orders, audit TO shop_reader;
SQL
