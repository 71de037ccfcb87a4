SELECT DISTINCT customers.id AS customer_id, customers.email AS recipient, customers.name AS name
FROM customers
JOIN orders ON orders.customer_id = customers.id
WHERE orders.ordered_on >= :period_start AND orders.ordered_on < :period_end
